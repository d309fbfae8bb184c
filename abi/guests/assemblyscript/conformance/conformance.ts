// Uses the whole of cuttlefish.ts; abi/guests/CONFORMANCE.md says what it must do.
import {
  Block, Command, Event, EventKind, InferOptions, Json, JsonWriter, Media, badInput, crop, documentText, done, embed, emit, fail,
  frame, infer, open, pageImage, pageText, pageTextOpt, register, resize, slice, sliceBytes,
} from "../cuttlefish";
export { cf_alloc, cf_init, cf_step, cf_on_token, cf_signature } from "../cuttlefish";

class Conformance extends Block {
  requests: Json[] = [];
  stopAt: string = "";
  rounds: u64 = 0;
  at: i32 = 0;
  seen: JsonWriter = new JsonWriter().list();
  tokens: JsonWriter = new JsonWriter().list();

  start(input: Json): Command {
    const requests = input.get("requests"), stopAt = input.get("stop_at"), rounds = input.get("rounds");
    if (!requests.isList || !stopAt.isText || !rounds.isU64 || rounds.u64 == 0) return badInput();
    this.requests = requests.items;
    this.stopAt = stopAt.text;
    this.rounds = rounds.u64;
    return this.next();
  }

  step(event: Event): Command {
    describe(event, this.seen);
    return this.next();
  }

  onToken(piece: string): bool {
    this.tokens.text(piece);
    return piece == this.stopAt;
  }

  next(): Command {
    if (this.at == this.requests.length) {
      if (this.at == 0 || --this.rounds == 0) {
        return done(new JsonWriter().object().key("seen").written(this.seen.end()).key("tokens").written(this.tokens.end()).end());
      }
      this.at = 0;
      this.seen.clear().list();
      this.tokens.clear().list();
    }
    const request = this.requests[this.at++];
    if (!isWell(request)) return fail("bad_input", "a request is no command");
    return issue(request);
  }
}

function allU32(list: Json): bool {
  const items = list.items;
  for (let i = 0; i < items.length; i++) if (!items[i].isU32) return false;
  return list.isList;
}

function allText(list: Json): bool {
  const items = list.items;
  for (let i = 0; i < items.length; i++) if (!items[i].isText) return false;
  return list.isList;
}

function texts(list: Json): string[] {
  const items = list.items, found: string[] = [];
  for (let i = 0; i < items.length; i++) found.push(items[i].text);
  return found;
}

function isWell(request: Json): bool {
  if (!request.get("cmd").isText) return false;
  const name = request.get("cmd").text;
  const images = request.get("images"), options = request.get("options"), op = request.get("op");
  if (name == "infer") {
    if (!request.get("prompt").isText || !request.get("max_tokens").isU32) return false;
    return (images.absent || allU32(images)) && (options.get("stop").absent || allText(options.get("stop")));
  }
  if (name == "embed") return allText(request.get("texts"));
  if (name == "open") return request.get("path").isText;
  if (name == "emit") return !request.get("progress").absent;
  if (name == "done") return !request.get("result").absent;
  if (name == "fail") return request.get("code").isText && request.get("message").isText;
  if (!request.get("handle").isU32) return false;
  if (name == "slice" || name == "slice_bytes") return request.get("offset").isU64 && request.get("len").isU64;
  if (name == "page_text" || name == "page_text_opt" || name == "page_image") return request.get("page").isU32;
  if (name == "document_text") return true;
  if (name != "image_op" || !op.get("op").isText) return false;
  if (op.get("op").text == "resize") return op.get("max_width").isU32 && op.get("max_height").isU32;
  if (op.get("op").text == "frame") return op.get("index").isU32;
  return op.get("op").text == "crop" && op.get("x").isU32 && op.get("y").isU32 && op.get("width").isU32 && op.get("height").isU32;
}

function issueInfer(request: Json): Command {
  const options = new InferOptions();
  const images = request.get("images").items, asked = request.get("options");
  for (let i = 0; i < images.length; i++) options.images.push(images[i].u32);
  if (asked.get("temperature").isNumber) options.temperature = asked.get("temperature").number;
  if (asked.get("seed").isU32) options.seed = asked.get("seed").u32;
  options.stop = texts(asked.get("stop"));
  if (!asked.get("schema").absent) options.schema = asked.get("schema");
  return infer(request.get("prompt").text, request.get("max_tokens").u32, options);
}

function issue(request: Json): Command {
  const name = request.get("cmd").text, op = request.get("op");
  if (name == "infer") return issueInfer(request);
  if (name == "embed") return embed(texts(request.get("texts")));
  if (name == "open") return open(request.get("path").text);
  if (name == "emit") return emit(new JsonWriter().json(request.get("progress")));
  if (name == "done") return done(new JsonWriter().json(request.get("result")));
  if (name == "fail") return fail(request.get("code").text, request.get("message").text);
  const handle = request.get("handle").u32;
  if (name == "slice") return slice(handle, request.get("offset").u64, request.get("len").u64);
  if (name == "slice_bytes") return sliceBytes(handle, request.get("offset").u64, request.get("len").u64);
  if (name == "page_text") return pageText(handle, request.get("page").u32);
  if (name == "page_text_opt") return pageTextOpt(handle, request.get("page").u32);
  if (name == "page_image") return pageImage(handle, request.get("page").u32);
  if (name == "document_text") return documentText(handle);
  if (op.get("op").text == "resize") return resize(handle, op.get("max_width").u32, op.get("max_height").u32);
  if (op.get("op").text == "frame") return frame(handle, op.get("index").u32);
  return crop(handle, op.get("x").u32, op.get("y").u32, op.get("width").u32, op.get("height").u32);
}

function describeKind(event: Event, to: JsonWriter): void {
  to.object().key("kind");
  if (event.media == Media.Text) to.text("text");
  else if (event.media == Media.Image) to.text("image").key("format").textOrNull(event.format);
  else if (event.media == Media.Document) to.text("document").key("pages").u64(event.pages).key("has_text_layer").bool(event.hasTextLayer);
  else to.text("binary");
  to.end();
}

function describe(event: Event, to: JsonWriter): void {
  to.object().key("event").text(event.name);
  switch (event.kind) {
    case EventKind.InferDone:
      to.key("text").text(event.text).key("tokens_out").u64(event.tokensOut).key("finish_reason").textOrNull(event.finishReason);
      break;
    case EventKind.Embedded:
      to.key("vectors").list();
      for (let i = 0; i < event.vectors.length; i++) {
        to.list();
        for (let j = 0; j < event.vectors[i].length; j++) to.number(event.vectors[i][j]);
        to.end();
      }
      to.end();
      break;
    case EventKind.Opened:
      to.key("handle").u64(event.handle).key("len").u64(event.len).key("kind");
      describeKind(event, to);
      break;
    case EventKind.Sliced:
      to.key("text").text(event.text).key("next_offset").u64(event.nextOffset);
      break;
    case EventKind.SlicedBytes: {
      let digits = "";
      for (let i = 0; i < event.bytes.length; i++) digits += event.bytes[i].toString(16).padStart(2, "0");
      to.key("hex").text(digits).key("next_offset").u64(event.nextOffset);
      break;
    }
    case EventKind.PageTexted:
      to.key("text").text(event.text).key("images");
      if (event.images < 0) to.null();
      else to.i64(event.images);
      to.key("coverage");
      if (isNaN(event.coverage)) to.null();
      else to.number(event.coverage);
      break;
    case EventKind.PageTextAttempted:
      to.key("text").textOrNull(event.reason === null ? event.text : null).key("error").textOrNull(event.reason);
      break;
    case EventKind.PageImaged:
      to.key("handle").u64(event.handle).key("len").u64(event.len).key("format").textOrNull(event.format).key("frames");
      if (event.frames < 0) to.null();
      else to.i64(event.frames);
      break;
    default:
  }
  to.end();
}

register("{requests: [json], stop_at: text, rounds: number}", "json", () => new Conformance());
