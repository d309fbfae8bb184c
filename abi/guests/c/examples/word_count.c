/* Counts the lines, words and characters of a text, window by window. */
#include "cuttlefish.h"

enum {
  WINDOW_BYTES = 64 * 1024,
  /* Progress costs a round trip through whoever watches, which takes longer than a window does. */
  WINDOWS_BETWEEN_REPORTS = 64
};

static struct {
  cf_text path;
  uint32_t handle;
  uint64_t len, offset, windows, lines, words, chars;
  bool inside_word; /* a word may go on in the next window */
} state;

static cf_writer json;

static cf_command begin(cf_json input) {
  cf_text path;
  if (!cf_get_text(input, "path", &path)) return cf_bad_input();
  state = (__typeof__(state)){.path = path};
  return cf_open(path);
}

static cf_command refuse(cf_text kind, cf_text advice) {
  return cf_fail(CF_TEXT("unsupported_kind"),
                 CF_CONCAT(CF_TEXT("\""), state.path, CF_TEXT("\" is "), kind, CF_TEXT(", and word-count reads only text. "), advice));
}

static cf_command go_on(void) {
  if (state.offset < state.len) return cf_slice(state.handle, state.offset, WINDOW_BYTES);
  cf_clear(&json);
  cf_object_begin(&json);
  cf_key(&json, "path");
  cf_put_text(&json, state.path);
  cf_key(&json, "lines");
  cf_put_u64(&json, state.lines);
  cf_key(&json, "words");
  cf_put_u64(&json, state.words);
  cf_key(&json, "chars");
  cf_put_u64(&json, state.chars);
  cf_object_end(&json);
  return cf_done(cf_written(&json));
}

static cf_command report(void) {
  cf_clear(&json);
  cf_object_begin(&json);
  cf_key(&json, "stage");
  cf_put_text(&json, CF_TEXT("reading"));
  cf_key(&json, "done");
  cf_put_u64(&json, state.offset);
  cf_key(&json, "of");
  cf_put_u64(&json, state.len);
  cf_object_end(&json);
  return cf_emit(cf_written(&json));
}

static void count(cf_text text) {
  for (size_t i = 0; i < text.len; i++) {
    unsigned char byte = (unsigned char)text.bytes[i];
    bool is_space = byte == ' ' || (byte >= '\t' && byte <= '\r'); /* what Python's bytes.split() splits at */
    state.lines += byte == '\n';
    state.chars += (byte & 0xC0) != 0x80;
    state.words += !is_space && !state.inside_word;
    state.inside_word = !is_space;
  }
}

static cf_command next(const cf_event *event) {
  switch (event->kind) {
    case CF_OPENED:
      state.handle = event->handle;
      state.len = event->len;
      switch (event->media) {
        case CF_KIND_TEXT: return go_on();
        case CF_KIND_IMAGE: return refuse(CF_TEXT("an image"), CF_TEXT("Describe it with the block \"summarize\" instead."));
        case CF_KIND_DOCUMENT:
          return refuse(CF_TEXT("a document"), CF_TEXT("Extract its text into a file first, or use the block \"summarize\"."));
        case CF_KIND_BINARY: return refuse(CF_TEXT("binary"), CF_TEXT("Convert it to text in UTF-8 first."));
      }
      return cf_unexpected(event);
    case CF_SLICED:
      if (!cf_advances(event, state.offset, state.len)) return cf_stuck(event, state.offset, state.len);
      count(event->text);
      state.offset = event->next_offset;
      return ++state.windows % WINDOWS_BETWEEN_REPORTS ? go_on() : report();
    case CF_EMITTED: return go_on();
    default: return cf_unexpected(event);
  }
}

CF_BLOCK("{path: text}", "{path: text, lines: number, words: number, chars: number}", begin, next)
