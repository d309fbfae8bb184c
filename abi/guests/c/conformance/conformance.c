/* Uses the whole of cuttlefish.h; abi/guests/CONFORMANCE.md says what it must do. */
#include "cuttlefish.h"

static struct {
  cf_json requests;
  cf_text stop_at;
  uint64_t rounds;
  size_t at, count;
} state;

static cf_writer seen, tokens, result;

static void forget(void) {
  cf_clear(&seen);
  cf_list_begin(&seen);
  cf_clear(&tokens);
  cf_list_begin(&tokens);
}

static bool infer(cf_json request, cf_command *command) {
  cf_inference asked = {0};
  cf_json images = {0}, options = {0}, value;
  if (!cf_get_text(request, "prompt", &asked.prompt) || !cf_get_u32(request, "max_tokens", &asked.max_tokens)) return false;
  if (cf_get(request, "images", &images) && !cf_is_list(images)) return false;
  asked.image_count = cf_count(images);
  uint32_t *image = cf_step_memory(asked.image_count * sizeof *image);
  asked.images = image;
  for (cf_walk walk = cf_walk_of(images); cf_step_to(&walk); image++)
    if (!cf_as_u32(walk.value, image)) return false;
  if (cf_get(request, "options", &options) && !cf_is_object(options)) return false;
  asked.has_temperature = cf_get_number(options, "temperature", &asked.temperature);
  asked.has_seed = cf_get_u32(options, "seed", &asked.seed);
  if (cf_get_list(options, "stop", &value)) {
    asked.stop_count = cf_count(value);
    cf_text *stop = cf_step_memory(asked.stop_count * sizeof *stop);
    asked.stop = stop;
    for (cf_walk walk = cf_walk_of(value); cf_step_to(&walk); stop++)
      if (!cf_as_text(walk.value, stop)) return false;
  }
  cf_get(options, "schema", &asked.schema);
  *command = cf_infer(asked);
  return true;
}

static bool embed(cf_json request, cf_command *command) {
  cf_json list;
  if (!cf_get_list(request, "texts", &list)) return false;
  size_t count = cf_count(list);
  cf_text *texts = cf_step_memory(count * sizeof *texts), *text = texts;
  for (cf_walk walk = cf_walk_of(list); cf_step_to(&walk); text++)
    if (!cf_as_text(walk.value, text)) return false;
  *command = cf_embed(texts, count);
  return true;
}

static bool image_op(cf_json request, uint32_t handle, cf_command *command) {
  cf_json op;
  cf_text name;
  uint32_t x, y, width, height, index;
  if (!cf_get(request, "op", &op) || !cf_get_text(op, "op", &name)) return false;
  if (cf_equal(name, CF_TEXT("resize"))) {
    if (!cf_get_u32(op, "max_width", &width) || !cf_get_u32(op, "max_height", &height)) return false;
    *command = cf_resize(handle, width, height);
    return true;
  }
  if (cf_equal(name, CF_TEXT("frame"))) {
    if (!cf_get_u32(op, "index", &index)) return false;
    *command = cf_frame(handle, index);
    return true;
  }
  if (!cf_equal(name, CF_TEXT("crop")) || !cf_get_u32(op, "x", &x) || !cf_get_u32(op, "y", &y) || !cf_get_u32(op, "width", &width) ||
      !cf_get_u32(op, "height", &height))
    return false;
  *command = cf_crop(handle, x, y, width, height);
  return true;
}

static bool issue(cf_json request, cf_command *command) {
  cf_text name, path, code, message;
  uint32_t handle, page;
  uint64_t offset, len;
  cf_json value;
  if (!cf_get_text(request, "cmd", &name)) return false;
  bool has_handle = cf_get_u32(request, "handle", &handle);
  bool has_page = has_handle && cf_get_u32(request, "page", &page);
  bool has_window = has_handle && cf_get_u64(request, "offset", &offset) && cf_get_u64(request, "len", &len);
  if (cf_equal(name, CF_TEXT("infer"))) return infer(request, command);
  if (cf_equal(name, CF_TEXT("embed"))) return embed(request, command);
  if (cf_equal(name, CF_TEXT("image_op")) && has_handle) return image_op(request, handle, command);
  if (cf_equal(name, CF_TEXT("open")) && cf_get_text(request, "path", &path)) *command = cf_open(path);
  else if (cf_equal(name, CF_TEXT("slice")) && has_window) *command = cf_slice(handle, offset, len);
  else if (cf_equal(name, CF_TEXT("slice_bytes")) && has_window) *command = cf_slice_bytes(handle, offset, len);
  else if (cf_equal(name, CF_TEXT("page_text")) && has_page) *command = cf_page_text(handle, page);
  else if (cf_equal(name, CF_TEXT("page_text_opt")) && has_page) *command = cf_page_text_opt(handle, page);
  else if (cf_equal(name, CF_TEXT("page_image")) && has_page) *command = cf_page_image(handle, page);
  else if (cf_equal(name, CF_TEXT("document_text")) && has_handle) *command = cf_document_text(handle);
  else if (cf_equal(name, CF_TEXT("emit")) && cf_get(request, "progress", &value)) *command = cf_emit(value);
  else if (cf_equal(name, CF_TEXT("done")) && cf_get(request, "result", &value)) *command = cf_done(value);
  else if (cf_equal(name, CF_TEXT("fail")) && cf_get_text(request, "code", &code) && cf_get_text(request, "message", &message))
    *command = cf_fail(code, message);
  else return false;
  return true;
}

static cf_command finish(void) {
  cf_list_end(&seen);
  cf_list_end(&tokens);
  cf_clear(&result);
  cf_object_begin(&result);
  cf_key(&result, "seen");
  cf_put_json(&result, cf_written(&seen));
  cf_key(&result, "tokens");
  cf_put_json(&result, cf_written(&tokens));
  cf_object_end(&result);
  return cf_done(cf_written(&result));
}

static cf_command go_on(void) {
  if (state.at == state.count) {
    if (state.count == 0 || --state.rounds == 0) return finish();
    state.at = 0;
    forget();
  }
  size_t at = 0;
  cf_command command;
  cf_walk walk = cf_walk_of(state.requests);
  while (cf_step_to(&walk) && at++ < state.at) continue;
  state.at++;
  if (!issue(walk.value, &command)) return cf_fail(CF_TEXT("bad_input"), CF_TEXT("a request is no command"));
  return command;
}

static cf_command begin(cf_json input) {
  if (!cf_get_list(input, "requests", &state.requests) || !cf_get_text(input, "stop_at", &state.stop_at) ||
      !cf_get_u64(input, "rounds", &state.rounds) || state.rounds == 0)
    return cf_bad_input();
  state.at = 0;
  state.count = cf_count(state.requests);
  forget();
  return go_on();
}

static void put_text_or_null(cf_text text) {
  if (text.bytes) cf_put_text(&seen, text);
  else cf_put_null(&seen);
}

static void put_field(const char *name, uint64_t number) {
  cf_key(&seen, name);
  cf_put_u64(&seen, number);
}

static void put_field_text(const char *name, cf_text text) {
  cf_key(&seen, name);
  put_text_or_null(text);
}

static void put_kind(const cf_event *event) {
  static const char *const names[] = {"text", "image", "document", "binary"};
  cf_object_begin(&seen);
  put_field_text("kind", cf_text_of_(names[event->media]));
  if (event->media == CF_KIND_IMAGE) put_field_text("format", event->format);
  if (event->media == CF_KIND_DOCUMENT) {
    put_field("pages", event->pages);
    cf_key(&seen, "has_text_layer");
    cf_put_bool(&seen, event->has_text_layer);
  }
  cf_object_end(&seen);
}

static cf_text hex(cf_text bytes) {
  char *digits = cf_step_memory(2 * bytes.len + 1);
  for (size_t i = 0; i < 2 * bytes.len; i++)
    digits[i] = "0123456789abcdef"[(unsigned char)bytes.bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
  return (cf_text){digits, 2 * bytes.len};
}

static cf_command next(const cf_event *event) {
  static const char *const names[] = {"infer_done",  "embedded",            "opened",      "sliced", "sliced_bytes",
                                      "page_texted", "page_text_attempted", "page_imaged", "emitted"};
  cf_object_begin(&seen);
  put_field_text("event", cf_text_of_(names[event->kind]));
  switch (event->kind) {
    case CF_INFER_DONE:
      put_field_text("text", event->text);
      put_field("tokens_out", event->tokens_out);
      put_field_text("finish_reason", event->finish_reason);
      break;
    case CF_EMBEDDED:
      cf_key(&seen, "vectors");
      cf_list_begin(&seen);
      for (size_t i = 0; i < event->vector_count; i++) {
        cf_list_begin(&seen);
        for (size_t j = 0; j < event->vectors[i].len; j++) cf_put_number(&seen, event->vectors[i].values[j]);
        cf_list_end(&seen);
      }
      cf_list_end(&seen);
      break;
    case CF_OPENED:
      put_field("handle", event->handle);
      put_field("len", event->len);
      cf_key(&seen, "kind");
      put_kind(event);
      break;
    case CF_SLICED: put_field_text("text", event->text); break;
    case CF_SLICED_BYTES: put_field_text("hex", hex(event->text)); break;
    case CF_PAGE_TEXTED:
      put_field_text("text", event->text);
      cf_key(&seen, "images");
      if (event->has_images) cf_put_u64(&seen, event->images);
      else cf_put_null(&seen);
      cf_key(&seen, "coverage");
      if (event->has_coverage) cf_put_number(&seen, event->coverage);
      else cf_put_null(&seen);
      break;
    case CF_PAGE_TEXT_ATTEMPTED:
      put_field_text("text", event->text);
      put_field_text("error", event->reason);
      break;
    case CF_PAGE_IMAGED:
      put_field("handle", event->handle);
      put_field("len", event->len);
      put_field_text("format", event->format);
      cf_key(&seen, "frames");
      if (event->has_frames) cf_put_u64(&seen, event->frames);
      else cf_put_null(&seen);
      break;
    case CF_EMITTED: break;
  }
  if (event->kind == CF_SLICED || event->kind == CF_SLICED_BYTES) put_field("next_offset", event->next_offset);
  cf_object_end(&seen);
  return go_on();
}

static bool on_token(cf_text piece) {
  cf_put_text(&tokens, piece);
  return cf_equal(piece, state.stop_at);
}

CF_BLOCK("{requests: [json], stop_at: text, rounds: number}", "json", begin, next)
CF_ON_TOKEN(on_token)
