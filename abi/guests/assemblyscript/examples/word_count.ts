// Counts the lines, words and characters of a text, window by window.
import {
  Block, Command, Event, EventKind, Json, JsonWriter, Media, badInput, done, emit, fail, open, register, slice, stuck, unexpected,
} from "../cuttlefish";
export { cf_alloc, cf_init, cf_step, cf_signature } from "../cuttlefish";

const WINDOW_BYTES: u64 = 64 * 1024;

// Progress costs a round trip through whoever watches, which takes longer than a window does.
const WINDOWS_BETWEEN_REPORTS: u64 = 64;

class WordCount extends Block {
  path: string = "";
  handle: u32 = 0;
  len: u64 = 0;
  offset: u64 = 0;
  windows: u64 = 0;
  lines: u64 = 0;
  words: u64 = 0;
  chars: u64 = 0;
  /** A word may go on in the next window. */
  insideWord: bool = false;

  start(input: Json): Command {
    const path = input.get("path");
    if (!path.isText) return badInput();
    this.path = path.text;
    return open(this.path);
  }

  step(event: Event): Command {
    switch (event.kind) {
      case EventKind.Opened:
        this.handle = event.handle;
        this.len = event.len;
        if (event.media == Media.Image) return this.refuse("an image", 'Describe it with the block "summarize" instead.');
        if (event.media == Media.Document) {
          return this.refuse("a document", 'Extract its text into a file first, or use the block "summarize".');
        }
        if (event.media == Media.Binary) return this.refuse("binary", "Convert it to text in UTF-8 first.");
        return this.next();
      case EventKind.Sliced:
        if (!event.advances(this.offset, this.len)) return stuck(event, this.offset, this.len);
        this.count(event.text);
        this.offset = event.nextOffset;
        if (++this.windows % WINDOWS_BETWEEN_REPORTS) return this.next();
        return emit(new JsonWriter().object().key("stage").text("reading").key("done").u64(this.offset).key("of").u64(this.len).end());
      case EventKind.Emitted:
        return this.next();
      default:
        return unexpected(event);
    }
  }

  next(): Command {
    if (this.offset < this.len) return slice(this.handle, this.offset, WINDOW_BYTES);
    const result = new JsonWriter().object().key("path").text(this.path).key("lines").u64(this.lines);
    return done(result.key("words").u64(this.words).key("chars").u64(this.chars).end());
  }

  refuse(kind: string, advice: string): Command {
    return fail("unsupported_kind", `"${this.path}" is ${kind}, and word-count reads only text. ${advice}`);
  }

  count(text: string): void {
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      const isSpace = unit == 0x20 || (unit >= 0x09 && unit <= 0x0d); // what Python's bytes.split() splits at
      if (unit == 0x0a) this.lines++;
      if ((unit & 0xfc00) != 0xdc00) this.chars++; // the second half of a pair belongs to the first
      if (!isSpace && !this.insideWord) this.words++;
      this.insideWord = !isSpace;
    }
  }
}

register("{path: text}", "{path: text, lines: number, words: number, chars: number}", () => new WordCount());
