/**
 * Write a Cuttlefish block in AssemblyScript.
 *
 * A block answers its input, and then each event, with a command. The host carries the command out and answers with an event:
 *
 *     import { Block, Command, Event, EventKind, Json, JsonWriter, badInput, done, infer, register, unexpected } from "./cuttlefish";
 *     export { cf_alloc, cf_init, cf_step, cf_signature } from "./cuttlefish";
 *
 *     class Greeter extends Block {
 *       start(input: Json): Command {
 *         const name = input.get("name");
 *         if (!name.isText) return badInput();
 *         return infer("Greet " + name.text + " in one short sentence.", 32);
 *       }
 *
 *       step(event: Event): Command {
 *         if (event.kind == EventKind.InferDone) return done(new JsonWriter().text(event.text));
 *         return unexpected(event);
 *       }
 *     }
 *
 *     register("{name: text}", "text", () => new Greeter());
 *
 * Export `cf_on_token` as well for a block with an `onToken`. Neither an unreadable input nor an event that does not answer the last
 * command reaches the block; they end it with the codes `bad_input` and `bad_event`. A failed check and a lack of memory in the middle
 * of a step end the guest with a trap.
 *
 * A command is good until the next one is made: return it straight away. Everything else lives as long as the block holds it.
 * Strings are UTF-16, as always in this language, and their `length` counts units of it; offsets of files count bytes of UTF-8.
 */

/** What the host answered last. */
export enum EventKind {
  InferDone,
  Embedded,
  Opened,
  Sliced,
  SlicedBytes,
  PageTexted,
  PageTextAttempted,
  PageImaged,
  Emitted,
}

/** What a file holds. Kinds that only a newer host knows are seen as `Binary`. */
export enum Media {
  Text,
  Image,
  Document,
  Binary,
}

/** What a function below has just written for the host. */
export enum Command {
  Infer,
  Embed,
  Open,
  Slice,
  SliceBytes,
  PageText,
  PageTextOpt,
  DocumentText,
  PageImage,
  ImageOp,
  Emit,
  Done,
  Fail,
}

const COMMAND_NAMES: StaticArray<string> = [
  "infer", "embed", "open", "slice", "slice_bytes", "page_text", "page_text_opt", "document_text", "page_image", "image_op", "emit", "done", "fail",
];

const EVENT_NAMES: StaticArray<string> = [
  "infer_done", "embedded", "opened", "sliced", "sliced_bytes", "page_texted", "page_text_attempted", "page_imaged", "emitted",
];

/** What the host answers. Only the fields named beside an event are set for it. */
export class Event {
  /** Its kind. */
  kind: EventKind = EventKind.Emitted;
  /** InferDone, Sliced, PageTexted, PageTextAttempted (empty when there is a `reason`). */
  text: string = "";
  /** InferDone. */
  tokensOut: u32 = 0;
  /** InferDone: `stop`, `length` or `stopped_by_block`; null from an older host. */
  finishReason: string | null = null;
  /** Embedded: one for each text, all of one length. */
  vectors: f64[][] = [];
  /** Opened, PageImaged: a number in this job. */
  handle: u32 = 0;
  /** Opened, PageImaged: bytes of the file. */
  len: u64 = 0;
  /** Opened. */
  media: Media = Media.Text;
  /** Opened with Media.Image; PageImaged, where it is null from an older host. */
  format: string | null = null;
  /** PageImaged: how many the image has of which `frame` took one; -1 after any other command. */
  frames: i64 = -1;
  /** Opened with Media.Document. */
  pages: u32 = 0;
  /** Opened with Media.Document. */
  hasTextLayer: bool = false;
  /** SlicedBytes: already decoded. */
  bytes: Uint8Array = new Uint8Array(0);
  /** Sliced, SlicedBytes: where to read on. */
  nextOffset: u64 = 0;
  /** PageTexted: how many images lie on the page; -1 from an older host, or for a whole document. */
  images: i64 = -1;
  /** PageTexted: which part of the page they cover, from 0 to 1; NaN from an older host, or for a whole document. */
  coverage: f64 = NaN;
  /** PageTextAttempted: the code and reason why there is no text; null if there is. */
  reason: string | null = null;

  /** The name in the contract. */
  get name(): string {
    return EVENT_NAMES[this.kind];
  }

  /** Whether reading on at `nextOffset` can reach the end. A block that follows offsets which stand still would ask for ever. */
  advances(offset: u64, len: u64): bool {
    return this.nextOffset > offset && this.nextOffset <= len;
  }
}

/** A block: its state, and how it answers. */
export abstract class Block {
  /** Begins a run, with an input that is JSON and otherwise unchecked. */
  abstract start(input: Json): Command;

  /** Answers an event, which always answers the last command. */
  abstract step(event: Event): Command;

  /** Sees a piece of the model's reply while `infer` is carried out. True stops the model; a piece or two may still come. */
  onToken(piece: string): bool {
    return false;
  }
}

let inputType: string = "json";
let outputType: string = "json";
let create: (() => Block) | null = null;
let block: Block | null = null;

/** Makes a class the block: its types, in the type language of the contract, and how to make one, which is done for each run. */
export function register(input: string, output: string, make: () => Block): void {
  inputType = input;
  outputType = output;
  create = make;
}

// Reading JSON

/** Brackets in brackets; deeper JSON counts as unreadable. */
const MOST_LEVELS: i32 = 512;
const levels = new StaticArray<u8>(MOST_LEVELS);

function skipSpace(at: usize, end: usize): usize {
  while (at < end) {
    const byte = load<u8>(at);
    if (byte != 0x20 && byte != 0x0a && byte != 0x0d && byte != 0x09) break;
    at++;
  }
  return at;
}

/** The value of four hexadecimal digits, or -1. */
function hex(at: usize, end: usize): i32 {
  if (end < at + 4) return -1;
  let value = 0;
  for (let i: usize = 0; i < 4; i++) {
    const byte = load<u8>(at + i);
    let digit: i32;
    if (byte >= 0x30 && byte <= 0x39) digit = byte - 0x30;
    else if (byte >= 0x61 && byte <= 0x66) digit = byte - 0x57;
    else if (byte >= 0x41 && byte <= 0x46) digit = byte - 0x37;
    else return -1;
    value = (value << 4) | digit;
  }
  return value;
}

/** Behind a string that starts at a quote, or 0. */
function skipString(at: usize, end: usize): usize {
  for (at++; at < end; at++) {
    let byte = load<u8>(at);
    if (byte == 0x22) return at + 1;
    if (byte < 0x20) return 0;
    if (byte != 0x5c) continue;
    if (++at == end) return 0;
    byte = load<u8>(at);
    if (byte == 0x75) {
      if (hex(at + 1, end) < 0) return 0;
      at += 4;
    } else if (byte != 0x22 && byte != 0x5c && byte != 0x2f && byte != 0x62 && byte != 0x66 && byte != 0x6e && byte != 0x72 && byte != 0x74) {
      return 0;
    }
  }
  return 0;
}

function skipDigits(at: usize, end: usize): usize {
  const start = at;
  while (at < end && load<u8>(at) >= 0x30 && load<u8>(at) <= 0x39) at++;
  return at == start ? 0 : at;
}

function skipNumber(at: usize, end: usize): usize {
  if (at < end && load<u8>(at) == 0x2d) at++;
  if (at < end && load<u8>(at) == 0x30) at++;
  else at = skipDigits(at, end);
  if (at && at < end && load<u8>(at) == 0x2e) at = skipDigits(at + 1, end);
  if (at && at < end && (load<u8>(at) | 0x20) == 0x65) {
    at++;
    if (at < end && (load<u8>(at) == 0x2b || load<u8>(at) == 0x2d)) at++;
    at = skipDigits(at, end);
  }
  return at;
}

function skipWord(at: usize, end: usize, word: u64, len: usize): usize {
  if (end < at + len) return 0;
  for (let i: usize = 0; i < len; i++) {
    if (load<u8>(at + i) != <u8>(word >> (8 * i))) return 0;
  }
  return at + len;
}

/** Behind a value, or 0 where there is none. Checks all of its syntax, without recursion. */
function skip(at: usize, end: usize): usize {
  let level = 0;
  while (true) {
    at = skipSpace(at, end);
    if (at == end) return 0;
    let opened = false;
    const first = load<u8>(at);
    switch (first) {
      case 0x7b: // {
      case 0x5b: // [
        if (level == MOST_LEVELS) return 0;
        unchecked((levels[level++] = first));
        opened = true;
        at++;
        break;
      case 0x22: at = skipString(at, end); break;
      case 0x74: at = skipWord(at, end, 0x65757274, 4); break; // true
      case 0x66: at = skipWord(at, end, 0x65736c6166, 5); break; // false
      case 0x6e: at = skipWord(at, end, 0x6c6c756e, 4); break; // null
      default: at = skipNumber(at, end);
    }
    if (!at) return 0;
    while (true) {
      if (level == 0) return at;
      const isObject = unchecked(levels[level - 1]) == 0x7b;
      at = skipSpace(at, end);
      if (at == end) return 0;
      if (load<u8>(at) == (isObject ? 0x7d : 0x5d)) {
        at++;
        level--;
        opened = false;
        continue;
      }
      if (!opened) {
        if (load<u8>(at) != 0x2c) return 0;
        at = skipSpace(at + 1, end);
      }
      if (isObject) {
        if (at == end || load<u8>(at) != 0x22) return 0;
        at = skipString(at, end);
        if (!at) return 0;
        at = skipSpace(at, end);
        if (at == end || load<u8>(at) != 0x3a) return 0;
        at++;
      }
      break;
    }
  }
}

let scratch = new StaticArray<u16>(4096);

/** Decodes a checked string from its opening quote on; `most` is its length in bytes. */
function decode(at: usize, most: i32): string {
  if (scratch.length < most) scratch = new StaticArray<u16>(max(most, 2 * scratch.length));
  const start = changetype<usize>(scratch);
  let out = start;
  at++;
  while (true) {
    const byte: u32 = load<u8>(at++);
    if (byte == 0x22) break;
    let code = byte;
    if (byte == 0x5c) {
      const escape: u32 = load<u8>(at++);
      switch (escape) {
        case 0x6e: code = 0x0a; break;
        case 0x74: code = 0x09; break;
        case 0x72: code = 0x0d; break;
        case 0x62: code = 0x08; break;
        case 0x66: code = 0x0c; break;
        case 0x75:
          code = hex(at, at + 4);
          at += 4;
          break;
        default: code = escape;
      }
    } else if (byte >= 0xf0) {
      code = ((byte & 7) << 18) | ((load<u8>(at) & 63) << 12) | ((load<u8>(at, 1) & 63) << 6) | (load<u8>(at, 2) & 63);
      at += 3;
      code -= 0x10000;
      store<u16>(out, 0xd800 | (code >> 10));
      out += 2;
      code = 0xdc00 | (code & 0x3ff);
    } else if (byte >= 0xe0) {
      code = ((byte & 15) << 12) | ((load<u8>(at) & 63) << 6) | (load<u8>(at, 1) & 63);
      at += 2;
    } else if (byte >= 0x80) {
      code = ((byte & 31) << 6) | (load<u8>(at++) & 63);
    }
    store<u16>(out, code);
    out += 2;
  }
  const text = changetype<string>(__new(out - start, idof<string>()));
  memory.copy(changetype<usize>(text), start, out - start);
  return text;
}

/** Whether the string at a quote is this name, which holds ASCII only. It may be written with escapes. */
function isName(at: usize, name: string): bool {
  at++;
  for (let i = 0; i < name.length; i++) {
    let code: i32 = load<u8>(at++);
    if (code == 0x22) return false;
    if (code == 0x5c) {
      code = load<u8>(at++);
      if (code == 0x75) {
        code = hex(at, at + 4);
        at += 4;
      }
    }
    if (code != name.charCodeAt(i)) return false;
  }
  return load<u8>(at) == 0x22;
}

let parsedU64: u64 = 0;

/** Whether the bytes are a whole number from 0 to 2^64-1, without fraction and exponent. It is then in `parsedU64`. */
function parseU64(at: usize, end: usize): bool {
  let sum: u64 = 0;
  if (at == end) return false;
  for (; at < end; at++) {
    const digit: u64 = <u64>load<u8>(at) - 0x30;
    if (digit > 9 || sum > u64.MAX_VALUE / 10 || sum * 10 > u64.MAX_VALUE - digit) return false;
    sum = sum * 10 + digit;
  }
  parsedU64 = sum;
  return true;
}

const NOTHING = new StaticArray<u8>(0);

/**
 * A JSON value as it is written; it is passed on unchanged, whatever it holds. A field that is missing is a value that is none of
 * anything: ask `isText`, `isU64` … before taking `text`, `u64` …
 */
export class Json {
  constructor(private source: StaticArray<u8>, private from: usize, private to: usize) {}

  /** The value that a message holds, or one that is `absent`. */
  static parse(at: usize, len: usize): Json {
    const source = new StaticArray<u8>(<i32>len);
    memory.copy(changetype<usize>(source), at, len);
    const start = skipSpace(changetype<usize>(source), changetype<usize>(source) + len);
    const end = skip(start, changetype<usize>(source) + len);
    if (!end || skipSpace(end, changetype<usize>(source) + len) != changetype<usize>(source) + len) return new Json(NOTHING, 0, 0);
    return new Json(source, start, end);
  }

  private get first(): u8 {
    return this.to > this.from ? load<u8>(this.from) : 0;
  }

  get absent(): bool {
    return this.from == this.to;
  }
  get isNull(): bool {
    return this.first == 0x6e;
  }
  get isText(): bool {
    return this.first == 0x22;
  }
  get isBool(): bool {
    return this.first == 0x74 || this.first == 0x66;
  }
  get isNumber(): bool {
    return this.first == 0x2d || (this.first >= 0x30 && this.first <= 0x39);
  }
  /** A whole number from 0 to 2^32-1, without fraction and exponent: handles, pages, counts. */
  get isU32(): bool {
    return parseU64(this.from, this.to) && parsedU64 <= <u64>u32.MAX_VALUE;
  }
  /** The same, to 2^64-1. */
  get isU64(): bool {
    return parseU64(this.from, this.to);
  }
  get isList(): bool {
    return this.first == 0x5b;
  }
  get isObject(): bool {
    return this.first == 0x7b;
  }

  get text(): string {
    assert(this.isText);
    return decode(this.from, <i32>(this.to - this.from));
  }
  get bool(): bool {
    assert(this.isBool);
    return this.first == 0x74;
  }
  get u32(): u32 {
    assert(this.isU32);
    return <u32>parsedU64;
  }
  get u64(): u64 {
    assert(this.isU64);
    return parsedU64;
  }
  /** The nearest double. */
  get number(): f64 {
    assert(this.isNumber);
    return parseDecimal(this.from, this.to);
  }

  /** A field of an object. */
  get(name: string): Json {
    if (!this.isObject) return new Json(NOTHING, 0, 0);
    let at = skipSpace(this.from + 1, this.to);
    while (load<u8>(at) != 0x7d) {
      if (load<u8>(at) == 0x2c) at = skipSpace(at + 1, this.to);
      const key = at;
      at = skipSpace(skipSpace(skipString(at, this.to), this.to) + 1, this.to);
      const end = skip(at, this.to);
      if (isName(key, name)) return new Json(this.source, at, end);
      at = skipSpace(end, this.to);
    }
    return new Json(NOTHING, 0, 0);
  }

  /** The names of an object's fields. */
  get keys(): string[] {
    const found: string[] = [];
    if (!this.isObject) return found;
    let at = skipSpace(this.from + 1, this.to);
    while (load<u8>(at) != 0x7d) {
      if (load<u8>(at) == 0x2c) at = skipSpace(at + 1, this.to);
      const end = skipString(at, this.to);
      found.push(decode(at, <i32>(end - at)));
      at = skipSpace(skip(skipSpace(end, this.to) + 1, this.to), this.to);
    }
    return found;
  }

  /** The items of a list; none if it is not a list. */
  get items(): Json[] {
    const found: Json[] = [];
    if (!this.isList) return found;
    let at = skipSpace(this.from + 1, this.to);
    while (load<u8>(at) != 0x5d) {
      if (load<u8>(at) == 0x2c) at = skipSpace(at + 1, this.to);
      const end = skip(at, this.to);
      found.push(new Json(this.source, at, end));
      at = skipSpace(end, this.to);
    }
    return found;
  }

  /** For the writer: address and length of what is written. */
  get address(): usize {
    return this.from;
  }
  get size(): usize {
    return this.to - this.from;
  }
}

// Fractions. A number is kept as the sum of two doubles, which has 106 bits: enough to round as IEEE 754 says, but for numbers that lie
// within 1e-14 of their last digit from the middle between two doubles. The language's own parser is less exact.

let high: f64 = 0;
let low: f64 = 0;

function multiply(factor: f64, rest: f64): void {
  let t = 134217729.0 * high; // 2^27 + 1
  const ah = t - (t - high), al = high - ah;
  t = 134217729.0 * factor;
  const bh = t - (t - factor), bl = factor - bh;
  const product = high * factor;
  const remainder = (ah * bh - product + ah * bl + al * bh + al * bl) + (high * rest + low * factor);
  high = product + remainder;
  low = remainder - (high - product);
}

const POWERS: StaticArray<f64> = [1e1, 1e2, 1e4, 1e8, 1e16, 1e32, 1e64, 1e128, 1e256, 1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32, 1e-64, 1e-128, 1e-256];
const POWER_RESTS: StaticArray<f64> = [
  0, 0, 0, 0, 0, -5366162204393472.0, -2.1320419009454396e47, -7.51744869165182e111, -3.012765990014054e239, -5.551115123125783e-18,
  -2.0816681711721684e-19, -4.79217360238593e-21, -2.092256083012847e-25, 2.0902213275965398e-33, -5.59673099762419e-49,
  3.469426116645307e-81, -5.401408859568103e-145, 2.2671708827212437e-273,
];

function scale(exponent: i32): void {
  const first = exponent < 0 ? 9 : 0;
  const size = abs(exponent);
  for (let i = 0; i < 9; i++) {
    if ((size >> i) & 1) multiply(POWERS[first + i], POWER_RESTS[first + i]);
  }
}

function powerOfTwo(exponent: i32): f64 {
  return reinterpret<f64>(<u64>(exponent + 1023) << 52);
}

function move(exponent: i32): void {
  high *= powerOfTwo(exponent);
  low *= powerOfTwo(exponent);
}

/** The double nearest to digits × 10^exponent. */
function decimal(digits: u64, exponent: i32): f64 {
  if (!digits || exponent < -400) return 0;
  if (exponent > 400) return Infinity;
  // Far from 1, products would lose their low half or overflow: they are made nearer to 1 and moved back by a power of two.
  let shift = exponent > 200 ? -300 : exponent < -200 ? 300 : 0;
  const upper = <f64>((digits >> 11) << 11), lower = <f64>(digits & 2047);
  high = upper + lower;
  low = lower - (high - upper);
  move(shift);
  if (exponent < -300) {
    scale(-200);
    move(600);
    scale(exponent + 200);
    shift = 900;
  } else {
    scale(exponent);
  }
  let value = high + low;
  if (shift > 600) {
    value *= powerOfTwo(-300);
    shift = 600;
  }
  return value * powerOfTwo(-shift);
}

function parseDecimal(at: usize, end: usize): f64 {
  const negative = load<u8>(at) == 0x2d;
  let inFraction = false, digits: u64 = 0, exponent = 0;
  if (negative) at++;
  for (; at < end && (load<u8>(at) | 0x20) != 0x65; at++) {
    const byte = load<u8>(at);
    if (byte == 0x2e) {
      inFraction = true;
    } else if (digits < 1000000000000000000) {
      digits = digits * 10 + <u64>(byte - 0x30);
      if (inFraction) exponent--;
    } else if (!inFraction) {
      exponent++;
    }
  }
  if (at < end) {
    const minus = load<u8>(at, 1) == 0x2d;
    let written = 0;
    for (at += minus || load<u8>(at, 1) == 0x2b ? 2 : 1; at < end; at++) {
      if (written < 100000) written = written * 10 + (load<u8>(at) - 0x30);
    }
    exponent += minus ? -written : written;
  }
  const value = decimal(digits, exponent);
  return negative ? -value : value;
}

// Writing JSON

/**
 * Writes one JSON value, with commas where they belong:
 *
 *     new JsonWriter().object().key("path").text(path).key("pages").list().u64(1).u64(2).end().end()
 */
export class JsonWriter {
  private bytes: StaticArray<u8> = new StaticArray<u8>(256);
  private length: i32 = 0;
  private needsComma: bool = false;
  private open: u8[] = [];

  /** Starts anew and keeps the memory. */
  clear(): this {
    this.length = 0;
    this.needsComma = false;
    this.open.length = 0;
    return this;
  }

  object(): this {
    return this.begin(0x7b, 0x7d);
  }
  list(): this {
    return this.begin(0x5b, 0x5d);
  }
  /** Ends the innermost object or list. */
  end(): this {
    this.put(this.open.pop());
    this.needsComma = true;
    return this;
  }
  /** The name of a field; its value is what is written next. */
  key(name: string): this {
    this.text(name).put(0x3a);
    this.needsComma = false;
    return this;
  }
  text(text: string): this {
    this.separate();
    this.reserve(6 * text.length + 2); // \u0000 is the longest that one unit takes
    const start = changetype<usize>(this.bytes) + this.length;
    let at = start;
    store<u8>(at++, 0x22);
    for (let i = 0, count = text.length; i < count; i++) {
      let code: u32 = load<u16>(changetype<usize>(text) + (<usize>i << 1));
      if (code < 0x80) {
        if (code >= 0x20 && code != 0x22 && code != 0x5c) {
          store<u8>(at++, code);
        } else if (code == 0x22 || code == 0x5c) {
          store<u16>(at, 0x5c | (code << 8));
          at += 2;
        } else {
          store<u32>(at, 0x3030755c); // \u00
          store<u8>(at, 0x30 | (code >> 4), 4);
          store<u8>(at, load<u8>(changetype<usize>("0123456789abcdef") + ((code & 15) << 1)), 5);
          at += 6;
        }
      } else if (code < 0x800) {
        store<u16>(at, 0xc0 | (code >> 6) | ((0x80 | (code & 63)) << 8));
        at += 2;
      } else {
        if (code >= 0xd800 && code < 0xe000) {
          const next: u32 = i + 1 < count ? <u32>text.charCodeAt(i + 1) : 0;
          if (code < 0xdc00 && next >= 0xdc00 && next < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (next - 0xdc00);
            i++;
            store<u8>(at++, 0xf0 | (code >> 18));
            store<u8>(at++, 0x80 | ((code >> 12) & 63));
            store<u16>(at, 0x80 | ((code >> 6) & 63) | ((0x80 | (code & 63)) << 8));
            at += 2;
            continue;
          }
          code = 0xfffd; // half a pair, which UTF-8 cannot say
        }
        store<u8>(at++, 0xe0 | (code >> 12));
        store<u16>(at, 0x80 | ((code >> 6) & 63) | ((0x80 | (code & 63)) << 8));
        at += 2;
      }
    }
    store<u8>(at++, 0x22);
    this.length += <i32>(at - start);
    return this;
  }
  bool(value: bool): this {
    return this.ascii(value ? "true" : "false");
  }
  null(): this {
    return this.ascii("null");
  }
  u64(number: u64): this {
    return this.ascii(number.toString());
  }
  i64(number: i64): this {
    return this.ascii(number.toString());
  }
  /** A fraction. One that is not finite is no JSON: the host refuses the command. */
  number(number: f64): this {
    return this.ascii(number == 0 && 1 / number < 0 ? "-0.0" : number.toString());
  }
  json(value: Json): this {
    this.separate();
    return this.raw(value.address, value.size);
  }
  /** What another writer has written. */
  written(writer: JsonWriter): this {
    this.separate();
    return this.raw(writer.address, <usize>writer.size);
  }
  /** A text or null. */
  textOrNull(text: string | null): this {
    return text === null ? this.null() : this.text(text);
  }

  /** Where what is written lies, until the next write. */
  get address(): usize {
    return changetype<usize>(this.bytes);
  }
  get size(): i32 {
    return this.length;
  }

  private begin(bracket: u8, closing: u8): this {
    this.separate();
    this.put(bracket);
    this.open.push(closing);
    this.needsComma = false;
    return this;
  }
  private separate(): void {
    if (this.needsComma) this.put(0x2c);
    this.needsComma = true;
  }
  private put(byte: u8): void {
    this.reserve(1);
    unchecked((this.bytes[this.length++] = byte));
  }
  private ascii(text: string): this {
    this.separate();
    for (let i = 0; i < text.length; i++) this.put(<u8>text.charCodeAt(i));
    return this;
  }
  private raw(at: usize, len: usize): this {
    this.reserve(<i32>len);
    memory.copy(changetype<usize>(this.bytes) + this.length, at, len);
    this.length += <i32>len;
    return this;
  }
  private reserve(more: i32): void {
    const needed = this.length + more;
    if (needed <= this.bytes.length) return;
    const larger = new StaticArray<u8>(max(needed, 2 * this.bytes.length));
    memory.copy(changetype<usize>(larger), changetype<usize>(this.bytes), this.length);
    this.bytes = larger;
  }
}

// Commands

const output = new JsonWriter();
let lastCommand: Command = Command.Fail;

function begin(command: Command): JsonWriter {
  return output.clear().object().key("cmd").text(COMMAND_NAMES[command]);
}

function finish(command: Command): Command {
  output.end();
  return command;
}

/** How the model chooses its words. What is left as it is, is left to the host. */
export class InferOptions {
  /** Handles of images, in the order in which the model sees them. */
  images: u32[] = [];
  /** From 0, the likeliest token each time, to 2. */
  temperature: f64 = NaN;
  /** From 0 to 2^32-1; makes a choice above temperature 0 repeatable. */
  seed: i64 = -1;
  /** The reply ends before the first of these. */
  stop: string[] = [];
  /** The reply is JSON that fits this JSON Schema, or the job fails. */
  schema: Json | null = null;
}

/** Asks the model. Answered by InferDone. */
export function infer(prompt: string, maxTokens: u32, options: InferOptions | null = null): Command {
  begin(Command.Infer).key("prompt").text(prompt).key("max_tokens").u64(maxTokens);
  if (options !== null) {
    if (options.images.length) {
      output.key("images").list();
      for (let i = 0; i < options.images.length; i++) output.u64(options.images[i]);
      output.end();
    }
    output.key("options").object();
    if (!isNaN(options.temperature)) output.key("temperature").number(options.temperature);
    if (options.seed >= 0) output.key("seed").i64(options.seed);
    if (options.stop.length) {
      output.key("stop").list();
      for (let i = 0; i < options.stop.length; i++) output.text(options.stop[i]);
      output.end();
    }
    const schema = options.schema;
    if (schema !== null) output.key("schema").json(schema);
    output.end();
  }
  return finish(Command.Infer);
}

/** Turns texts into vectors. Answered by Embedded. */
export function embed(texts: string[]): Command {
  begin(Command.Embed).key("texts").list();
  for (let i = 0; i < texts.length; i++) output.text(texts[i]);
  output.end();
  return finish(Command.Embed);
}

/** Opens a file. Answered by Opened. */
export function open(path: string): Command {
  begin(Command.Open).key("path").text(path);
  return finish(Command.Open);
}

function read(command: Command, handle: u32, offset: u64, len: u64): Command {
  begin(command).key("handle").u64(handle).key("offset").u64(offset).key("len").u64(len);
  return finish(command);
}

/** Asks for the whole characters within `len` bytes of a text. Answered by Sliced. */
export function slice(handle: u32, offset: u64, len: u64): Command {
  return read(Command.Slice, handle, offset, len);
}

/** Asks for bytes of anything that is open. Answered by SlicedBytes. */
export function sliceBytes(handle: u32, offset: u64, len: u64): Command {
  return read(Command.SliceBytes, handle, offset, len);
}

function ofPage(command: Command, handle: u32, page: u32): Command {
  begin(command).key("handle").u64(handle).key("page").u64(page);
  return finish(command);
}

/** Asks for the text of a page, counted from zero. Answered by PageTexted. */
export function pageText(handle: u32, page: u32): Command {
  return ofPage(Command.PageText, handle, page);
}

/** Asks for the text of a page, or the reason why there is none: `pageText` would end the job. Answered by PageTextAttempted. */
export function pageTextOpt(handle: u32, page: u32): Command {
  return ofPage(Command.PageTextOpt, handle, page);
}

/** Asks for the text of all pages in one. Answered by PageTexted. */
export function documentText(handle: u32): Command {
  begin(Command.DocumentText).key("handle").u64(handle);
  return finish(Command.DocumentText);
}

/** Asks for a picture of a page, counted from zero. Answered by PageImaged. */
export function pageImage(handle: u32, page: u32): Command {
  return ofPage(Command.PageImage, handle, page);
}

/** Asks for a copy of an image that fits into a box: proportions are kept, and nothing is enlarged. Answered by PageImaged. */
export function resize(handle: u32, maxWidth: u32, maxHeight: u32): Command {
  begin(Command.ImageOp).key("handle").u64(handle).key("op").object().key("op").text("resize");
  output.key("max_width").u64(maxWidth).key("max_height").u64(maxHeight).end();
  return finish(Command.ImageOp);
}

/** Asks for a part of an image, which must lie wholly inside, in pixels from the upper left corner. Answered by PageImaged. */
export function crop(handle: u32, x: u32, y: u32, width: u32, height: u32): Command {
  begin(Command.ImageOp).key("handle").u64(handle).key("op").object().key("op").text("crop");
  output.key("x").u64(x).key("y").u64(y).key("width").u64(width).key("height").u64(height).end();
  return finish(Command.ImageOp);
}

/** Asks for one frame of an animation, counted from zero: all else sees the first. Answered by PageImaged. */
export function frame(handle: u32, index: u32): Command {
  begin(Command.ImageOp).key("handle").u64(handle).key("op").object().key("op").text("frame");
  output.key("index").u64(index).end();
  return finish(Command.ImageOp);
}

/** Shows progress to whoever watches. Answered by Emitted. */
export function emit(progress: JsonWriter): Command {
  begin(Command.Emit).key("progress").written(progress);
  return finish(Command.Emit);
}

/** Ends the block with its result, of the type that it promises. */
export function done(result: JsonWriter): Command {
  begin(Command.Done).key("result").written(result);
  return finish(Command.Done);
}

/** Ends the block: `code` for programs, `message` for people (what happened, and what to do). */
export function fail(code: string, message: string): Command {
  begin(Command.Fail).key("code").text(code).key("message").text(message);
  return finish(Command.Fail);
}

/** Ends the block because its input is not what its signature says. */
export function badInput(): Command {
  return fail("bad_input", "the input is not " + inputType);
}

/** Ends the block because an event makes no sense here. For the last line of a block's `step`. */
export function unexpected(event: Event): Command {
  return fail("bad_event", `the host answered "${COMMAND_NAMES[lastCommand]}" with "${event.name}"`);
}

/** Ends the block because a window does not lead on from `offset`. */
export function stuck(window: Event, offset: u64, len: u64): Command {
  const next = window.nextOffset.toString();
  return fail("bad_event", `the host answered a request at byte ${offset.toString()} of ${len.toString()} with next_offset ${next}, which leads nowhere`);
}

// Reading events

function textOrNull(value: Json): string | null {
  return value.isText ? value.text : null;
}

/** Whether a field is a text, null or not there. */
function mayBeText(value: Json): bool {
  return value.absent || value.isNull || value.isText;
}

function readKind(kind: Json, event: Event): bool {
  if (kind.absent) return true;
  const name = kind.get("kind");
  if (!name.isText) return false;
  const written = name.text;
  if (written == "text") return true;
  if (written == "image") {
    event.media = Media.Image;
    event.format = textOrNull(kind.get("format"));
    return event.format !== null;
  }
  if (written == "document") {
    const pages = kind.get("pages"), hasTextLayer = kind.get("has_text_layer");
    if (!pages.isU32 || !hasTextLayer.isBool) return false;
    event.media = Media.Document;
    event.pages = pages.u32;
    event.hasTextLayer = hasTextLayer.bool;
    return true;
  }
  event.media = Media.Binary;
  return true;
}

function readVectors(list: Json, event: Event): bool {
  if (!list.isList) return false;
  const lists = list.items;
  for (let i = 0; i < lists.length; i++) {
    if (!lists[i].isList) return false;
    const numbers = lists[i].items;
    const vector = new Array<f64>(numbers.length);
    for (let j = 0; j < numbers.length; j++) {
      if (!numbers[j].isNumber) return false;
      vector[j] = numbers[j].number;
    }
    event.vectors.push(vector);
  }
  return true;
}

function six(code: i32): i32 {
  if (code >= 0x41 && code <= 0x5a) return code - 0x41;
  if (code >= 0x61 && code <= 0x7a) return code - 0x47;
  if (code >= 0x30 && code <= 0x39) return code + 4;
  return code == 0x2b ? 62 : code == 0x2f ? 63 : -1;
}

function readBase64(value: Json, event: Event): bool {
  if (!value.isText) return false;
  const encoded = value.text;
  const count = encoded.length;
  if (count % 4) return false;
  const padding = count && encoded.charCodeAt(count - 1) == 0x3d ? (encoded.charCodeAt(count - 2) == 0x3d ? 2 : 1) : 0;
  const bytes = new Uint8Array((count / 4) * 3 - padding);
  let bits = 0;
  for (let i = 0, at = 0; i < count; i++) {
    const part = i >= count - padding ? 0 : six(encoded.charCodeAt(i));
    if (part < 0) return false;
    bits = (bits << 6) | part;
    if ((i & 3) == 3) {
      for (let shift = 16; shift >= 0 && at < bytes.length; shift -= 8) bytes[at++] = <u8>(bits >> shift);
      bits = 0;
    }
  }
  event.bytes = bytes;
  return true;
}

/** The event that a message holds, or null. */
function readEvent(at: usize, len: usize): Event | null {
  const message = Json.parse(at, len);
  const name = message.get("event");
  if (!name.isText) return null;
  const kind = EVENT_NAMES.indexOf(name.text);
  if (kind < 0) return null;
  const event = new Event();
  event.kind = <EventKind>kind;
  const text = message.get("text"), handle = message.get("handle"), length = message.get("len"), next = message.get("next_offset");
  if (text.isText) event.text = text.text;
  if (handle.isU32) event.handle = handle.u32;
  if (length.isU64) event.len = length.u64;
  if (next.isU64) event.nextOffset = next.u64;
  switch (kind) {
    case EventKind.InferDone: {
      const tokensOut = message.get("tokens_out"), finishReason = message.get("finish_reason");
      if (!text.isText || !tokensOut.isU32 || !mayBeText(finishReason)) return null;
      event.tokensOut = tokensOut.u32;
      event.finishReason = textOrNull(finishReason);
      break;
    }
    case EventKind.Embedded:
      if (!readVectors(message.get("vectors"), event)) return null;
      break;
    case EventKind.Opened:
      if (!handle.isU32 || !length.isU64 || !readKind(message.get("kind"), event)) return null;
      break;
    case EventKind.Sliced:
      if (!text.isText || !next.isU64) return null;
      break;
    case EventKind.SlicedBytes:
      if (!next.isU64 || !readBase64(message.get("bytes_base64"), event)) return null;
      break;
    case EventKind.PageTexted: {
      const images = message.get("images"), coverage = message.get("coverage");
      if (!text.isText) return null;
      if (!images.absent && !images.isNull) {
        if (!images.isU32) return null;
        event.images = images.u32;
      }
      if (!coverage.absent && !coverage.isNull) {
        if (!coverage.isNumber) return null;
        event.coverage = coverage.number;
      }
      break;
    }
    case EventKind.PageTextAttempted: {
      const reason = message.get("error");
      if (!mayBeText(text) || !mayBeText(reason) || text.isText == reason.isText) return null;
      event.reason = textOrNull(reason);
      break;
    }
    case EventKind.PageImaged: {
      const frames = message.get("frames");
      if (!handle.isU32 || !length.isU64 || !readKind(message.get("kind"), event)) return null;
      if (!frames.absent && !frames.isNull) {
        if (!frames.isU32) return null;
        event.frames = frames.u32;
      }
      break;
    }
    default:
  }
  return event;
}

function answers(event: EventKind, command: Command): bool {
  switch (command) {
    case Command.Infer: return event == EventKind.InferDone;
    case Command.Embed: return event == EventKind.Embedded;
    case Command.Open: return event == EventKind.Opened;
    case Command.Slice: return event == EventKind.Sliced;
    case Command.SliceBytes: return event == EventKind.SlicedBytes;
    case Command.PageText:
    case Command.DocumentText: return event == EventKind.PageTexted;
    case Command.PageTextOpt: return event == EventKind.PageTextAttempted;
    case Command.PageImage:
    case Command.ImageOp: return event == EventKind.PageImaged;
    case Command.Emit: return event == EventKind.Emitted;
    default: return false;
  }
}

// Exports

const PAGE: usize = 65536;
let inputAt: usize = 0;
let inputCapacity: usize = 0;
const descriptor = new StaticArray<u32>(2);

function describe(writer: JsonWriter): usize {
  descriptor[0] = <u32>writer.address;
  descriptor[1] = <u32>writer.size;
  return changetype<usize>(descriptor);
}

function answer(command: Command): usize {
  lastCommand = command;
  return describe(output);
}

/**
 * One buffer serves every message, because the host writes each straight before the call that reads it. It lies outside of the
 * language's heap, which would end the guest where there is no memory; this function says so.
 */
export function cf_alloc(len: usize): usize {
  if (len > inputCapacity || !inputCapacity) {
    const capacity = (max<usize>(max<usize>(len, 1), min<usize>(2 * inputCapacity, len + 64 * PAGE)) + PAGE - 1) & ~(PAGE - 1);
    if (capacity < len) return 0;
    const before = memory.grow(<i32>(capacity >>> 16));
    if (before < 0) return 0;
    inputAt = <usize>before << 16;
    inputCapacity = capacity;
  }
  return inputAt;
}

export function cf_init(at: usize, len: usize): usize {
  const make = create;
  const input = Json.parse(at, len);
  if (make === null || input.absent) return answer(badInput());
  const made = make();
  block = made;
  return answer(made.start(input));
}

export function cf_step(at: usize, len: usize): usize {
  const event = readEvent(at, len);
  const current = block;
  if (event === null) {
    return answer(fail("bad_event", `the host answered "${COMMAND_NAMES[lastCommand]}" with an event that this block cannot read`));
  }
  if (current === null || !answers(event.kind, lastCommand)) return answer(unexpected(event));
  return answer(current.step(event));
}

export function cf_on_token(at: usize, len: usize): i32 {
  const current = block;
  return current !== null && current.onToken(String.UTF8.decodeUnsafe(at, len)) ? 1 : 0;
}

const signature = new JsonWriter();

export function cf_signature(): usize {
  return describe(signature.clear().object().key("input").text(inputType).key("output").text(outputType).end());
}
