/* Says in one sentence what a text is about, from how it starts. */
#include "cuttlefish.h"

enum { START_BYTES = 4096, MOST_TOKENS = 64 };

static cf_text path;
static cf_writer json;

static cf_command begin(cf_json input) {
  if (!cf_get_text(input, "path", &path)) return cf_bad_input();
  return cf_open(path);
}

static cf_command next(const cf_event *event) {
  switch (event->kind) {
    case CF_OPENED:
      if (event->media != CF_KIND_TEXT)
        return cf_fail(CF_TEXT("unsupported_kind"), CF_CONCAT(CF_TEXT("\""), path, CF_TEXT("\" is no text; my-block reads text")));
      return cf_slice(event->handle, 0, START_BYTES);
    case CF_SLICED:
      return cf_infer((cf_inference){
          .prompt = CF_CONCAT(CF_TEXT("Say in one sentence what this is about:\n\n"), event->text),
          .max_tokens = MOST_TOKENS,
      });
    case CF_INFER_DONE:
      cf_clear(&json);
      cf_object_begin(&json);
      cf_key(&json, "path");
      cf_put_text(&json, path);
      cf_key(&json, "about");
      cf_put_text(&json, event->text);
      cf_object_end(&json);
      return cf_done(cf_written(&json));
    default: return cf_unexpected(event);
  }
}

CF_BLOCK("{path: text}", "{path: text, about: text}", begin, next)
