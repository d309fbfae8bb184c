//! Summarizes a text, a document or an image.
//!
//! A long text is cut into parts that fit a small model's context. Each part's summary becomes a
//! note; when the notes themselves grow too long for one prompt, they are merged into one. So the
//! block never holds more than one part, one page and one prompt's worth of notes.
//!
//! A reply that was cut off is never taken for a whole one: it ends with its last whole sentence, and
//! the result says that something is left out.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const utf8 = cuttlefish.utf8;
const hasWords = utf8.hasWords;
const trimmed = utf8.trimmed;

// Sizes, in tokens of a small model with a context of 2,048. A part is about 3,600 bytes of English
// or 1,400 of Chinese. Measured with SmolLM2's vocabulary, which knows English and little else, whole
// prompts take 800 tokens (English), 1,500 (columns of numbers) and, of the languages tried, at most
// 1,800 (Swahili).
const context_tokens = 2048;
const instruction_tokens = 110; // the longer instructions below and the chat template, measured
const part_reply_tokens = 96;
const merge_reply_tokens = 160;
const part_tokens = 1400;

/// A reply that was cut off before it said anything whole is asked for once more, and may be longer by this factor.
const second_try_factor = 2;

/// A longer reply is clipped before it joins the notes, so that the next one always fits too.
const note_tokens = 560;
const merge_above_tokens = 800;

/// `thirdsOf` counts a byte as at least a third of a token on average.
const part_bytes = 3 * part_tokens;

/// A window always fills a part, so that no part is smaller than it need be.
const window_bytes = 6000;

comptime {
    std.debug.assert(part_tokens + instruction_tokens + second_try_factor * merge_reply_tokens <= context_tokens);
    std.debug.assert(merge_above_tokens + note_tokens < part_tokens);
    std.debug.assert(part_bytes < window_bytes);
}

// The question stands behind the text: a small model has then read what it is asked about.

const text_prompt =
    \\Here is a part of a document.
    \\
    \\<text>
    \\{s}
    \\</text>
    \\
    \\Summarize this part in two or three sentences, in its own language. Keep the important names and numbers. Answer with the summary only.
;

const merge_prompt =
    \\Here are notes on the parts of one document, in order.
    \\
    \\<notes>
    \\{s}
    \\</notes>
    \\
    \\Summarize the whole document in two or three sentences, in the language of the notes. Keep the important names and numbers. Answer with the summary only.
;

const page_prompt =
    "Describe what this page says in two or three plain sentences. Keep the important names and numbers. " ++
    "Answer with the description only, in the language of the page.";

const image_prompt =
    "Describe what this image shows in two or three plain sentences. If it holds text, say what the text says. " ++
    "Answer with the description only.";

/// What became of a reply: kept as it was, up to its last whole sentence, or up to a word.
const NoteState = enum { whole, shortened, torn };

const Summarize = struct {
    path: []const u8 = "",
    handle: u32 = 0,
    source: enum { text, document, image } = .text,
    /// What to read next and where to stop: bytes of a text, pages of a document.
    next: u64 = 0,
    end: u64 = 0,
    has_text_layer: bool = false,
    /// The next page has no words of its own, so a picture of it is asked for.
    wants_picture: bool = false,

    /// Text that was read; the first `taken` bytes of it are in prompts already.
    gathered: std.ArrayList(u8) = .empty,
    taken: usize = 0,

    notes: [part_bytes]u8 = undefined,
    notes_len: usize = 0,
    notes_count: u64 = 0,

    /// The question under way, kept for asking it again.
    asked: enum { part, merge } = .part,
    prompt: std.ArrayList(u8) = .empty,
    picture: ?u32 = null,
    is_second_try: bool = false,

    /// Of the replies so far, those whose end was left out; and whether the last note ends within a sentence.
    replies: u64 = 0,
    shortened: u64 = 0,
    is_note_torn: bool = false,

    after_report: enum { advance, merge, ask_again } = .advance,

    pub const signature: cuttlefish.Signature = .{ .input = "{path: text}", .output = "{path: text, summary: text}" };
    pub const Input = struct { path: cuttlefish.Text };

    pub fn init(self: *Summarize, input: Input) cuttlefish.Command {
        self.path = input.path.bytes;
        return cuttlefish.open(self.path);
    }

    pub fn step(self: *Summarize, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .opened => |opened| self.begin(opened),
            .sliced => |window| self.readWindow(window),
            .page_texted => |page| self.readPage(page.text),
            .page_imaged => |picture| self.describePage(picture.handle),
            .infer_done => |reply| self.readReply(reply),
            .emitted => switch (self.after_report) {
                .advance => self.advance(),
                .merge => self.merge(),
                .ask_again => self.inferAnswer(),
            },
            else => cuttlefish.unexpected(event),
        };
    }

    // Reading

    fn begin(self: *Summarize, opened: cuttlefish.Opened) cuttlefish.Command {
        self.handle = opened.handle;
        switch (opened.kind) {
            .text => {
                self.source = .text;
                self.end = opened.len;
            },
            .document => |document| {
                self.source = .document;
                self.end = document.pages;
                self.has_text_layer = document.has_text_layer;
            },
            .image => {
                self.source = .image;
                return self.ask(.part, image_prompt, self.handle);
            },
            .binary => return cuttlefish.fail("unsupported_kind", cuttlefish.format(
                "\"{s}\" is neither a text in UTF-8 nor a PDF nor an image. Convert it to one of these first.",
                .{self.path},
            )),
        }
        if (self.end == 0) return self.conclude();
        return self.report("reading", .advance);
    }

    /// Does whatever comes next: merge notes, summarize a part, look at a page, read on, or end.
    fn advance(self: *Summarize) cuttlefish.Command {
        if (thirdsOf(self.notesText()) > 3 * merge_above_tokens) return self.report("merging", .merge);
        while (self.takePart()) |part| {
            if (hasWords(part)) return self.ask(.part, cuttlefish.format(text_prompt, .{trimmed(part)}), null);
        }
        if (self.next == self.end) return self.conclude();
        if (self.source == .text) return cuttlefish.slice(self.handle, self.next, window_bytes);
        const page: u32 = @intCast(self.next);
        if (self.has_text_layer and !self.wants_picture) return cuttlefish.pageText(self.handle, page);
        return cuttlefish.pageImage(self.handle, page);
    }

    fn readWindow(self: *Summarize, window: cuttlefish.Window) cuttlefish.Command {
        if (!window.advances(self.next, self.end)) return cuttlefish.stuck(window, self.next, self.end);
        self.gather(window.bytes);
        self.next = window.next_offset;
        return self.advance();
    }

    fn readPage(self: *Summarize, text: []const u8) cuttlefish.Command {
        if (hasWords(text)) {
            self.gather(text);
            self.gather("\n\n");
            self.next += 1;
        } else {
            self.wants_picture = true;
        }
        return self.advance();
    }

    fn describePage(self: *Summarize, picture: u32) cuttlefish.Command {
        self.wants_picture = false;
        self.next += 1;
        return self.ask(.part, page_prompt, picture);
    }

    fn gather(self: *Summarize, text: []const u8) void {
        const rest = self.untaken();
        std.mem.copyForwards(u8, self.gathered.items, rest);
        self.gathered.shrinkRetainingCapacity(rest.len);
        self.taken = 0;
        self.gathered.appendSlice(cuttlefish.runAllocator(), text) catch @trap();
    }

    fn untaken(self: *const Summarize) []const u8 {
        return self.gathered.items[self.taken..];
    }

    /// The next part, or null while there is still room for more text in it.
    fn takePart(self: *Summarize) ?[]const u8 {
        const rest = self.untaken();
        if (rest.len == 0) return null;
        const fitting = prefixWithin(rest, part_tokens);
        // A page that needs its picture comes after the pages before it, which are a part now.
        const may_grow = self.next < self.end and !self.wants_picture;
        if (fitting == rest.len and may_grow) return null;
        const part = if (fitting == rest.len) rest else rest[0..lastWordEnd(rest[0..fitting])];
        self.taken += part.len;
        return part;
    }

    // Summarizing

    fn ask(self: *Summarize, what: @FieldType(Summarize, "asked"), prompt: []const u8, picture: ?u32) cuttlefish.Command {
        self.asked = what;
        self.prompt.clearRetainingCapacity();
        self.prompt.appendSlice(cuttlefish.runAllocator(), prompt) catch @trap();
        self.picture = picture;
        self.is_second_try = false;
        return self.inferAnswer();
    }

    fn inferAnswer(self: *Summarize) cuttlefish.Command {
        return cuttlefish.infer(.{
            .prompt = self.prompt.items,
            .max_tokens = self.replyTokens(),
            .images = if (self.picture) |*handle| handle[0..1] else &.{},
        });
    }

    fn replyTokens(self: *const Summarize) u32 {
        const once: u32 = if (self.asked == .merge) merge_reply_tokens else part_reply_tokens;
        return if (self.is_second_try) second_try_factor * once else once;
    }

    fn merge(self: *Summarize) cuttlefish.Command {
        return self.ask(.merge, cuttlefish.format(merge_prompt, .{self.notesText()}), null);
    }

    fn readReply(self: *Summarize, reply: cuttlefish.Reply) cuttlefish.Command {
        const text = trimmed(reply.text);
        if (!reply.isCut(self.replyTokens())) {
            if (!hasWords(text)) return cuttlefish.fail("empty_reply", cuttlefish.format(
                "the model answered without a single word about \"{s}\". Run it again, or with another model.",
                .{self.path},
            ));
            return self.keepReply(text, .whole);
        }
        if (wholeSentences(text)) |sentences| return self.keepReply(sentences, .shortened);
        if (!self.is_second_try) {
            self.is_second_try = true;
            return self.report("asking again", .ask_again);
        }
        // As one note of many, half a sentence is better than an end to hours of work. As the summary it is none.
        if (self.isLastReply() or !hasWords(text)) return cuttlefish.fail("cut_off", cuttlefish.format(
            "the model's reply about \"{s}\" was cut off after {d} and again after {d} tokens, before it had said enough in whole sentences. " ++
                "Use a model that answers in a few sentences.",
            .{ self.path, self.replyTokens() / second_try_factor, self.replyTokens() },
        ));
        return self.keepReply(trimmed(text[0..lastWordEnd(text)]), .torn);
    }

    /// Whether the reply that is waited for becomes the summary.
    fn isLastReply(self: *const Summarize) bool {
        return self.isReadToTheEnd() and (self.asked == .merge or self.notes_count == 0);
    }

    fn keepReply(self: *Summarize, text: []const u8, state: NoteState) cuttlefish.Command {
        self.replies += 1;
        const is_last = self.isLastReply();
        if (self.asked == .merge) {
            self.notes_len = 0;
            self.notes_count = 0;
        }
        if (is_last) {
            self.shortened += @intFromBool(state != .whole);
            return self.finish(text);
        }
        const fitting = text[0..prefixWithin(text, note_tokens)];
        if (fitting.len == text.len) {
            self.addNote(text, state);
        } else if (wholeSentences(fitting)) |sentences| {
            self.addNote(sentences, .shortened);
        } else {
            self.addNote(trimmed(fitting[0..lastWordEnd(fitting)]), .torn);
        }
        return self.report("summarizing", .advance);
    }

    fn addNote(self: *Summarize, text: []const u8, state: NoteState) void {
        if (self.notes_count > 0) {
            self.notes[self.notes_len] = '\n';
            self.notes_len += 1;
        }
        @memcpy(self.notes[self.notes_len..][0..text.len], text);
        self.notes_len += text.len;
        self.notes_count += 1;
        self.shortened += @intFromBool(state != .whole);
        self.is_note_torn = state == .torn;
    }

    fn notesText(self: *const Summarize) []const u8 {
        return self.notes[0..self.notes_len];
    }

    fn isReadToTheEnd(self: *const Summarize) bool {
        return self.next == self.end and !hasWords(self.untaken());
    }

    fn conclude(self: *Summarize) cuttlefish.Command {
        return switch (self.notes_count) {
            0 => cuttlefish.fail("nothing_to_summarize", cuttlefish.format("\"{s}\" holds no words to summarize.", .{self.path})),
            // One note alone is the summary, unless it ends within a sentence; then the model puts it into whole ones.
            1 => if (self.is_note_torn) self.report("merging", .merge) else self.finish(self.notesText()),
            else => self.report("merging", .merge),
        };
    }

    fn finish(self: *Summarize, summary: []const u8) cuttlefish.Command {
        if (self.shortened == 0) return cuttlefish.done(.{ .path = self.path, .summary = summary });
        const left_out = if (self.replies == 1)
            "the end of the model's reply, cut off as too long"
        else
            cuttlefish.format("the end of {d} of the model's {d} replies, cut off as too long", .{ self.shortened, self.replies });
        return cuttlefish.done(.{ .path = self.path, .summary = summary, .left_out = left_out });
    }

    fn report(self: *Summarize, stage: []const u8, then: @FieldType(Summarize, "after_report")) cuttlefish.Command {
        self.after_report = then;
        const rest = self.untaken();
        const unfinished: u64 = if (self.source == .text) rest.len else @intFromBool(hasWords(rest));
        return cuttlefish.emit(.{ .stage = stage, .done = self.next -| unfinished, .of = self.end });
    }
};

// Measuring text

/// Guesses a text's tokens, in thirds of a token, byte by byte. It aims above what the byte-level
/// vocabularies of small models need: they know words in Latin letters by whole pieces, but spend
/// up to a token on each byte of other scripts, on each digit and on each sign.
const TokenMeter = struct {
    word_letters: usize = 0,
    unspaced_bytes: usize = 0,

    /// No word of a language is as long; keys, base64 and the like are, and take far more tokens.
    const longest_word = 24;

    fn thirds(self: *TokenMeter, byte: u8) usize {
        if (!std.ascii.isAlphabetic(byte)) self.word_letters = 0;
        if (std.ascii.isWhitespace(byte)) {
            self.unspaced_bytes = 0;
            return if (byte == ' ') 1 else 3;
        }
        self.unspaced_bytes += 1;
        if (!std.ascii.isAlphabetic(byte) or self.unspaced_bytes > longest_word) return 3;
        self.word_letters += 1;
        return switch (self.word_letters) {
            1 => 3,
            2, 3 => 0,
            else => 1,
        };
    }
};

fn thirdsOf(text: []const u8) usize {
    var meter: TokenMeter = .{};
    var thirds: usize = 0;
    for (text) |byte| thirds += meter.thirds(byte);
    return thirds;
}

/// The length of the longest run of whole characters from the start that takes at most `tokens`.
fn prefixWithin(text: []const u8, tokens: usize) usize {
    var meter: TokenMeter = .{};
    var thirds: usize = 0;
    var character_start: usize = 0;
    for (text, 0..) |byte, index| {
        if (utf8.startsCharacter(byte)) character_start = index;
        thirds += meter.thirds(byte);
        if (thirds > 3 * tokens) return character_start;
    }
    return text.len;
}

/// Where to end a text that may go on within a word: after the last white space if there is one in the last quarter,
/// because half a word misleads a model; else where it ends.
fn lastWordEnd(text: []const u8) usize {
    var end = text.len;
    while (end > text.len - text.len / 4) : (end -= 1) {
        if (std.ascii.isWhitespace(text[end - 1])) return end;
    }
    return text.len;
}

// Sentences

/// The whole sentences of a reply that was cut off, up to where it repeats itself: small models do, without an end. Null
/// if most of the reply would be lost, since then "Sure!" might be all that is left.
fn wholeSentences(reply: []const u8) ?[]const u8 {
    var end: usize = 0;
    while (sentenceEnd(reply, end)) |next| {
        if (std.mem.find(u8, reply[0..end], trimmed(reply[end..next])) != null) return reply[0..end];
        end = next;
    }
    return if (end > 0 and 2 * end >= reply.len) reply[0..end] else null;
}

/// Where the sentence ends that begins at `start`; null if that is not sure.
fn sentenceEnd(text: []const u8, start: usize) ?usize {
    var at = start;
    while (at < text.len) {
        const mark_start = at;
        const mark = utf8.characterAt(text, at);
        at += characterBytes(mark);
        if (!isNarrowMark(mark) and !isWideMark(mark)) continue;
        while (at < text.len) {
            const character = utf8.characterAt(text, at);
            if (!isNarrowMark(character) and !isWideMark(character) and !isClosing(character)) break;
            at += characterBytes(character);
        }
        if (!hasWords(text[start..mark_start])) continue;
        if (isWideMark(mark)) return at;
        if (at < text.len and !std.ascii.isWhitespace(text[at])) continue;
        if (mark != '.' or isFullStop(text[start..mark_start], text[at..])) return at;
    }
    return null;
}

/// Whether a period ends a sentence: not that of "Dr.", "e.g.", "J. Smith", "3. März", or of a number that was cut off.
fn isFullStop(before: []const u8, after: []const u8) bool {
    const next = trimmed(after);
    if (next.len > 0 and std.ascii.isLower(next[0])) return false;
    const word_start = if (std.mem.findLastAny(u8, before, " \n\r\t(\"'.")) |at| at + 1 else 0;
    const word = before[word_start..];
    if (utf8.characters(word) < 2) return false;
    if (std.ascii.isDigit(word[word.len - 1]) and (word.len < 3 or next.len == 0)) return false;
    const abbreviations = [_][]const u8{ "dr", "mr", "mrs", "ms", "prof", "st", "mt", "no", "nr", "fig", "vol", "vs", "ca", "approx", "jr", "sr", "gen", "col" };
    for (abbreviations) |abbreviation| if (std.ascii.eqlIgnoreCase(word, abbreviation)) return false;
    return true;
}

/// What ends a sentence when a white space follows.
fn isNarrowMark(character: u21) bool {
    return switch (character) {
        '.', '!', '?', '…', '؟', '۔', '।' => true,
        else => false,
    };
}

/// What ends a sentence of a script without spaces.
fn isWideMark(character: u21) bool {
    return switch (character) {
        '。', '！', '？' => true,
        else => false,
    };
}

/// What may stand behind the mark and still belongs to the sentence.
fn isClosing(character: u21) bool {
    return switch (character) {
        '"', '\'', ')', ']', '*', '”', '’', '»', '」', '』', '）' => true,
        else => false,
    };
}

fn characterBytes(character: u21) usize {
    return std.unicode.utf8CodepointSequenceLength(character) catch unreachable;
}

comptime {
    cuttlefish.exportBlock(Summarize);
}
