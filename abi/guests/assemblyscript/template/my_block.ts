// Says in one sentence what a text is about, from how it starts.
import {
  Block, Command, Event, EventKind, Json, JsonWriter, Media, badInput, done, fail, infer, open, register, slice, unexpected,
} from "./cuttlefish";
export { cf_alloc, cf_init, cf_step, cf_signature } from "./cuttlefish";

const START_BYTES: u64 = 4096;
const MOST_TOKENS: u32 = 64;

class MyBlock extends Block {
  path: string = "";

  start(input: Json): Command {
    const path = input.get("path");
    if (!path.isText) return badInput();
    this.path = path.text;
    return open(this.path);
  }

  step(event: Event): Command {
    switch (event.kind) {
      case EventKind.Opened:
        if (event.media != Media.Text) return fail("unsupported_kind", `"${this.path}" is no text; my-block reads text`);
        return slice(event.handle, 0, START_BYTES);
      case EventKind.Sliced:
        return infer("Say in one sentence what this is about:\n\n" + event.text, MOST_TOKENS);
      case EventKind.InferDone:
        return done(new JsonWriter().object().key("path").text(this.path).key("about").text(event.text).end());
      default:
        return unexpected(event);
    }
  }
}

register("{path: text}", "{path: text, about: text}", () => new MyBlock());
