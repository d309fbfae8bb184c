//! Summarizes a text, a document or an image.
//!
//! A long text is cut into parts that fit a small model's context. Each part's summary becomes a
//! note; when the notes themselves grow too long for one prompt, they are merged into one. So the
//! block never holds more than one part, one page and one prompt's worth of notes.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const hasWords = cuttlefish.utf8.hasWords;
const trimmed = cuttlefish.utf8.trimmed;

// Sizes, in tokens of a small model with a context of 2,048. A part is about 3,600 bytes of English
// or 1,400 of Chinese. Measured with SmolLM2's vocabulary, which knows English and little else, whole
// prompts take 800 tokens (English), 1,500 (columns of numbers) and, of the languages tried, at most
// 1,800 (Swahili).
const context_tokens = 2048;
const instruction_tokens = 110; // the longer instructions below and the chat template, measured
const part_reply_tokens = 96;
const merge_reply_tokens = 160;
const part_tokens = 1400;

/// A longer reply is clipped before it joins the notes, so that the next one always fits too.
const note_tokens = 560;
const merge_above_tokens = 800;

/// `thirdsOf` counts a byte as at least a third of a token on average.
const part_bytes = 3 * part_tokens;

/// A window always fills a part, so that no part is smaller than it need be.
const window_bytes = 6000;

comptime {
    std.debug.assert(part_tokens + instruction_tokens + merge_reply_tokens <= context_tokens);
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
    \\In two or three sentences, in the language of the text, what does it say? Keep the important names and numbers. Answer with the summary only.
;

const merge_prompt =
    \\Here are notes on the parts of one document, in order.
    \\
    \\<notes>
    \\{s}
    \\</notes>
    \\
    \\In two or three sentences, in the language of the notes, what does the whole document say? Keep the important names and numbers. Answer with the summary only.
;

const page_prompt =
    "Describe what this page says in two or three plain sentences. Keep the important names and numbers. " ++
    "Answer with the description only, in the language of the page.";

const image_prompt =
    "Describe what this image shows in two or three plain sentences. If it holds text, say what the text says. " ++
    "Answer with the description only.";

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

    asked: enum { part, merge } = .part,
    after_report: enum { advance, merge } = .advance,

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
            .infer_done => |reply| self.note(reply.text),
            .emitted => switch (self.after_report) {
                .advance => self.advance(),
                .merge => self.merge(),
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
                return self.ask(.part, image_prompt, &.{self.handle});
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
            if (hasWords(part)) return self.ask(.part, cuttlefish.format(text_prompt, .{trimmed(part)}), &.{});
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
        return self.ask(.part, page_prompt, &.{picture});
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
        const part = rest[0..lastWordEnd(rest, fitting)];
        self.taken += part.len;
        return part;
    }

    // Summarizing

    fn ask(self: *Summarize, what: @FieldType(Summarize, "asked"), prompt: []const u8, images: []const u32) cuttlefish.Command {
        self.asked = what;
        return cuttlefish.infer(.{
            .prompt = prompt,
            .max_tokens = if (what == .merge) merge_reply_tokens else part_reply_tokens,
            .images = images,
        });
    }

    fn merge(self: *Summarize) cuttlefish.Command {
        return self.ask(.merge, cuttlefish.format(merge_prompt, .{self.notesText()}), &.{});
    }

    fn note(self: *Summarize, reply: []const u8) cuttlefish.Command {
        const text = trimmed(reply);
        if (!hasWords(text)) return cuttlefish.fail("empty_reply", cuttlefish.format(
            "the model answered without a single word about \"{s}\". Run it again, or with another model.",
            .{self.path},
        ));
        if (self.asked == .merge) {
            self.notes_len = 0;
            self.notes_count = 0;
        }
        if (self.notes_count == 0 and self.isReadToTheEnd()) return self.finish(text);
        self.addNote(text[0..prefixWithin(text, note_tokens)]);
        return self.report("summarizing", .advance);
    }

    fn addNote(self: *Summarize, text: []const u8) void {
        if (self.notes_count > 0) {
            self.notes[self.notes_len] = '\n';
            self.notes_len += 1;
        }
        @memcpy(self.notes[self.notes_len..][0..text.len], text);
        self.notes_len += text.len;
        self.notes_count += 1;
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
            1 => self.finish(self.notesText()),
            else => self.report("merging", .merge),
        };
    }

    fn finish(self: *Summarize, summary: []const u8) cuttlefish.Command {
        return cuttlefish.done(.{ .path = self.path, .summary = summary });
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
        if (cuttlefish.utf8.startsCharacter(byte)) character_start = index;
        thirds += meter.thirds(byte);
        if (thirds > 3 * tokens) return character_start;
    }
    return text.len;
}

/// Where to cut a text that must end by `limit`: after a white space if there is one in the last
/// quarter, because half a word misleads a model; else at `limit`.
fn lastWordEnd(text: []const u8, limit: usize) usize {
    if (limit == text.len) return limit;
    var end = limit;
    while (end > limit - limit / 4) : (end -= 1) {
        if (std.ascii.isWhitespace(text[end - 1])) return end;
    }
    return limit;
}

comptime {
    cuttlefish.exportBlock(Summarize);
}
