//! Cuts pages of text into chunks that a prompt can hold.
//!
//! A chunk is a stretch of one page, unchanged. Chunks are not copied: until they are written, each
//! is a place in the input.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const utf8 = cuttlefish.utf8;

const MiB = 1024 * 1024;

/// How long the result may be as JSON. Short chunks and long overlaps make far more of it than
/// there is of the input.
const most_bytes = 48 * MiB;

/// What a chunk takes beside its text: names, number and brackets.
const chunk_bytes = 32;

const default_max_chars = 2000;

const Piece = struct { page: u32, text: []const u8 };

const Chunk = struct {
    pub const signature: cuttlefish.Signature = .{
        .input = "{pages: [{text: text}]}",
        .output = "{chunks: [{page: number, text: text}]}",
    };
    pub const options = "whole numbers max_chars, overlap_chars, and page in each page";
    pub const Input = struct {
        pages: []const struct { text: cuttlefish.Text, page: ?cuttlefish.Whole(u32) = null },
        max_chars: cuttlefish.Whole(u32) = .{ .value = default_max_chars },
        overlap_chars: cuttlefish.Whole(u32) = .{ .value = 0 },
    };

    pub fn init(_: *Chunk, input: Input) cuttlefish.Command {
        const most = input.max_chars.value;
        const overlap = input.overlap_chars.value;
        if (most == 0) return cuttlefish.fail("bad_option", "max_chars is 0, and a chunk holds at least one character. Give it a larger number.");
        if (overlap >= most) return cuttlefish.fail("bad_option", cuttlefish.format(
            "overlap_chars is {d} and max_chars is {d}: the overlap must be smaller, or no chunk would reach beyond the one before it.",
            .{ overlap, most },
        ));
        var pieces: std.ArrayList(Piece) = .empty;
        var size: u64 = 0;
        for (input.pages, 0..) |page, index| {
            const number: u32 = if (page.page) |given| given.value else @intCast(index);
            var cutter: Cutter = .{ .text = page.text.bytes, .most = most, .overlap = overlap };
            while (cutter.next()) |text| {
                size += utf8.jsonBytes(text) + chunk_bytes;
                if (size > most_bytes) return cuttlefish.fail("too_large", cuttlefish.format(
                    "the chunks take more than {d} MiB. Raise max_chars ({d}), lower overlap_chars ({d}), or give fewer pages at once.",
                    .{ most_bytes / MiB, most, overlap },
                ));
                if (utf8.trimmed(text).len == 0) continue; // nothing that a prompt could be about
                pieces.append(cuttlefish.runAllocator(), .{ .page = number, .text = text }) catch @trap();
            }
        }
        return cuttlefish.done(.{ .chunks = pieces.items });
    }

    pub fn step(_: *Chunk, event: cuttlefish.Event) cuttlefish.Command {
        return cuttlefish.unexpected(event);
    }
};

/// Goes through a text chunk by chunk. Every chunk ends further on than the one before, and begins
/// no later than that one ended, so that together they hold every character.
const Cutter = struct {
    text: []const u8,
    most: u32,
    overlap: u32,
    /// Where the last chunk ended.
    end: usize = 0,

    fn next(self: *Cutter) ?[]const u8 {
        if (self.end == self.text.len) return null;
        const start = if (self.end == 0) 0 else self.overlapStart();
        const limit = start + utf8.first(self.text[start..], self.most).len;
        self.end = if (limit == self.text.len) limit else self.bestCut(self.end, limit);
        return self.text[start..self.end];
    }

    /// Where the next chunk begins: at most `overlap` characters before the last one's end, at a word
    /// if one begins there.
    fn overlapStart(self: *const Cutter) usize {
        var start = self.end;
        var left = self.overlap;
        while (left > 0 and start > 0) : (left -= 1) {
            start -= 1;
            while (!utf8.startsCharacter(self.text[start])) start -= 1;
        }
        var at = start;
        while (at < self.end) : (at += 1) {
            if (at == 0 or (isSpace(self.text[at - 1]) and !isSpace(self.text[at]))) return at;
        }
        return start;
    }

    /// The best place to cut behind `from`, up to `limit`: the last one of the best kind in the second half, so
    /// that a title alone makes no chunk; else the last one anywhere; else at the limit.
    fn bestCut(self: *const Cutter, from: usize, limit: usize) usize {
        var best: Border = .none;
        var cut = limit;
        var at = limit;
        while (at > from) : (at -= 1) {
            const in_second_half = at - from > (limit - from) / 2;
            if (!in_second_half and best != .none) break;
            const border = borderAt(self.text, at);
            if (@backingInt(border) <= @backingInt(best)) continue;
            best = border;
            cut = at;
            if (best == .paragraph or !in_second_half) break;
        }
        return if (best == .none) self.wholeCharacter(from, limit) else cut;
    }

    /// The last place up to `limit` that does not tear apart what people see as one character.
    fn wholeCharacter(self: *const Cutter, from: usize, limit: usize) usize {
        var at = limit;
        while (at > from) : (at -= 1) {
            if (!utf8.startsCharacter(self.text[at])) continue;
            if (!isJoined(utf8.characterBefore(self.text, at), utf8.characterAt(self.text, at))) return at;
        }
        return limit;
    }
};

/// What ends at a place in a text, from the least to the most.
const Border = enum { none, word, sentence, line, paragraph };

/// The border right before `at`. White space belongs to what it follows, so a cut lies behind all of it.
fn borderAt(text: []const u8, at: usize) Border {
    const before = text[0..at];
    if (!isSpace(text[at - 1])) return if (endsWideSentence(before) and !isWideEnd(utf8.characterAt(text, at))) .sentence else .none;
    if (isSpace(text[at])) return .none;
    const words = std.mem.trimEnd(u8, before, &std.ascii.whitespace);
    const spaces = before[words.len..];
    switch (std.mem.count(u8, spaces, "\n")) {
        0 => {},
        1 => return .line,
        else => return .paragraph,
    }
    return if (endsSentence(words)) .sentence else .word;
}

/// Whether a text ends as a sentence does, perhaps within quotes or brackets.
fn endsSentence(words: []const u8) bool {
    const ends = [_][]const u8{ ".", "!", "?", "…", "。", "！", "？", "؟", "।" };
    const closing = [_][]const u8{ "\"", "'", ")", "]", "”", "’", "»", "」", "』", "）" };
    var rest = words;
    while (endOf(rest, &closing)) |len| rest = rest[0 .. rest.len - len];
    return endOf(rest, &ends) != null;
}

/// Whether a text ends with a sentence of a script that has no spaces between its sentences.
fn endsWideSentence(text: []const u8) bool {
    return endOf(text, &.{ "。", "！", "？", "。」", "。』", "。）" }) != null;
}

fn endOf(text: []const u8, endings: []const []const u8) ?usize {
    for (endings) |ending| if (std.mem.endsWith(u8, text, ending)) return ending.len;
    return null;
}

/// What still belongs to the sentence before it.
fn isWideEnd(character: u21) bool {
    return switch (character) {
        '。', '！', '？', '」', '』', '）', '”', '’' => true,
        else => false,
    };
}

/// Whether two characters show as one: an accent, a joined or toned emoji, a line end of two bytes.
fn isJoined(before: u21, after: u21) bool {
    return switch (after) {
        0x0300...0x036F, 0x1AB0...0x1AFF, 0x1DC0...0x1DFF, 0x20D0...0x20FF, 0xFE00...0xFE0F, 0xFE20...0xFE2F => true,
        0x200D, 0x1F3FB...0x1F3FF, 0xE0020...0xE007F => true,
        '\n' => before == '\r',
        else => before == 0x200D,
    };
}

fn isSpace(byte: u8) bool {
    return std.ascii.isWhitespace(byte);
}

comptime {
    cuttlefish.exportBlock(Chunk);
}
