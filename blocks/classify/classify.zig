//! Chooses the label that fits a text.
//!
//! The model's reply is matched strictly: a label that nobody asked for, or a choice that could be
//! either of two, must not send a document down the wrong branch of a pipeline.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const utf8 = cuttlefish.utf8;

/// How much of a text the prompt holds unless the input says otherwise. What a text is shows at its
/// beginning, and a small model's context is short.
const default_max_chars = 4000;

/// How much of a reply a failure quotes.
const quoted_chars = 200;

/// A label has at most as many tokens as bytes; models like to say something before it.
const extra_tokens = 16;

const most_labels = 100;
const longest_label = 100; // characters

// The question stands behind the text, and the labels in one sentence: of several forms tried with
// SmolLM2, the only one that it answers with a label most of the time.

const prompt_pattern =
    \\Here is a text.
    \\
    \\<text>
    \\{s}
    \\</text>
    \\
    \\The labels are: {s}. Which label fits the text best? Answer with the label only.
;

const stern_pattern =
    \\Here is a text.
    \\
    \\<text>
    \\{s}
    \\</text>
    \\
    \\Your whole answer must be one of these labels, copied letter by letter, without any other word: {s}. The label is:
;

const Classify = struct {
    text: []const u8 = "",
    labels: []const cuttlefish.Text = &.{},
    is_second_try: bool = false,

    pub const signature: cuttlefish.Signature = .{
        .input = "{text: text, labels: [text]}",
        .output = "{route: text, label: text}",
    };
    pub const options = "the whole number max_chars";
    pub const Input = struct {
        text: cuttlefish.Text,
        labels: []const cuttlefish.Text,
        max_chars: cuttlefish.Whole(u32) = .{ .value = default_max_chars },
    };

    pub fn init(self: *Classify, input: Input) cuttlefish.Command {
        self.labels = input.labels;
        if (labelProblem(self.labels)) |problem| return cuttlefish.fail("bad_labels", problem);
        const all = utf8.trimmed(input.text.bytes);
        if (!utf8.hasWords(all)) return cuttlefish.fail("no_text", "the text has no letter or digit, so no label can fit it. Give a text with words.");
        if (input.max_chars.value == 0) return cuttlefish.fail("bad_option", "max_chars is 0, which leaves nothing to read. Give it a larger number.");
        self.text = utf8.first(all, input.max_chars.value);
        if (self.text.len == all.len) return self.ask();
        return cuttlefish.emit(.{ .stage = "cutting", .done = input.max_chars.value, .of = utf8.characters(all) });
    }

    pub fn step(self: *Classify, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .emitted => self.ask(),
            .infer_done => |reply| self.read(reply),
            else => cuttlefish.unexpected(event),
        };
    }

    fn ask(self: *Classify) cuttlefish.Command {
        var list: []const u8 = "";
        for (self.labels) |label| {
            list = cuttlefish.format("{s}{s}\"{s}\"", .{ list, if (list.len > 0) ", " else "", label.bytes });
        }
        const values = .{ self.text, list };
        return cuttlefish.infer(.{
            .prompt = if (self.is_second_try) cuttlefish.format(stern_pattern, values) else cuttlefish.format(prompt_pattern, values),
            .max_tokens = self.replyTokens(),
        });
    }

    fn replyTokens(self: *const Classify) u32 {
        var longest: usize = 0;
        for (self.labels) |label| longest = @max(longest, label.bytes.len);
        return @intCast(longest + extra_tokens);
    }

    fn read(self: *Classify, reply: cuttlefish.Reply) cuttlefish.Command {
        const is_cut = reply.isCut(self.replyTokens());
        const problem = switch (match(reply.text, self.labels, is_cut)) {
            .label => |index| {
                const label = self.labels[index].bytes;
                return cuttlefish.done(.{ .route = label, .label = label });
            },
            .none => if (is_cut) "which was cut off there and does not begin with a label" else "which names none of the labels",
            .several => "which names more than one of the labels",
        };
        if (!self.is_second_try) {
            self.is_second_try = true;
            return cuttlefish.emit(.{ .stage = "asking again", .done = 1, .of = 2 });
        }
        return cuttlefish.fail("no_label", cuttlefish.format(
            "asked twice, the model answered \"{s}\", {s}. Use a larger model, or labels that are easier to tell apart.",
            .{ utf8.quotable(reply.text, quoted_chars), problem },
        ));
    }
};

fn labelProblem(labels: []const cuttlefish.Text) ?[]const u8 {
    if (labels.len < 2) return "there is nothing to choose from: give at least two labels.";
    if (labels.len > most_labels) return cuttlefish.format("there are {d} labels, and a prompt holds at most {d}. Classify in two steps.", .{ labels.len, most_labels });
    for (labels, 0..) |label, index| {
        const bytes = label.bytes;
        if (!utf8.hasWords(bytes) or utf8.trimmed(bytes).len != bytes.len or std.mem.findAny(u8, bytes, "\r\n") != null) return cuttlefish.format(
            "labels[{d}] is \"{s}\": a label is one line with a letter or digit, without white space around it.",
            .{ index, utf8.quotable(bytes, quoted_chars) },
        );
        if (utf8.characters(bytes) > longest_label) return cuttlefish.format(
            "labels[{d}] is \"{s}…\": a label has at most {d} characters. Give it a short name.",
            .{ index, utf8.first(bytes, longest_label), longest_label },
        );
        for (labels[0..index], 0..) |earlier, at| {
            if (std.ascii.eqlIgnoreCase(earlier.bytes, bytes)) return cuttlefish.format(
                "labels[{d}] and labels[{d}] are the same, \"{s}\". Give labels that differ in more than upper and lower case.",
                .{ at, index, bytes },
            );
        }
    }
    return null;
}

// Matching

const Match = union(enum) { label: usize, none, several };

/// The label that a reply names: one at its start, with signs such as quotes before it, or else the only one found in it.
/// Upper and lower case of ASCII letters are the same. Of a reply that was cut off only its start counts, because what is missing might
/// name another label, or be the rest of a longer one.
fn match(reply: []const u8, labels: []const cuttlefish.Text, is_cut: bool) Match {
    var found: ?usize = null;
    var at: usize = 0;
    var only_signs_so_far = true;
    while (at < reply.len) {
        if (longestLabelAt(reply, at, labels)) |index| {
            const end = at + labels[index].bytes.len;
            if (is_cut) return if (only_signs_so_far and end < reply.len) .{ .label = index } else .none;
            if (only_signs_so_far) return .{ .label = index };
            if (found) |earlier| if (earlier != index) return .several;
            found = index;
            // A label within a longer one that was named is not named itself.
            at = end;
            continue;
        }
        const character = utf8.characterAt(reply, at);
        if (utf8.isInWord(character)) only_signs_so_far = false;
        at += std.unicode.utf8CodepointSequenceLength(character) catch unreachable;
    }
    return if (found) |index| .{ .label = index } else .none;
}

fn longestLabelAt(reply: []const u8, at: usize, labels: []const cuttlefish.Text) ?usize {
    var longest: ?usize = null;
    for (labels, 0..) |label, index| {
        const end = at + label.bytes.len;
        if (!std.ascii.startsWithIgnoreCase(reply[at..], label.bytes)) continue;
        if (isInsideWord(reply, at) or isInsideWord(reply, end)) continue;
        if (longest == null or label.bytes.len > labels[longest.?].bytes.len) longest = index;
    }
    return longest;
}

/// Whether one word goes on at `at`, so that what begins or ends here is only a part of it.
fn isInsideWord(text: []const u8, at: usize) bool {
    if (at == 0 or at == text.len) return false;
    for ([_]u21{ utf8.characterBefore(text, at), utf8.characterAt(text, at) }) |character| {
        if (!utf8.isInWord(character) or hasNoSpaces(character)) return false;
    }
    return true;
}

/// Whether a character is of a script that writes words without spaces between them.
fn hasNoSpaces(character: u21) bool {
    return switch (character) {
        0x0E00...0x0EFF, 0x1000...0x109F, 0x1780...0x17FF => true, // Thai, Lao, Burmese, Khmer
        0x2E80...0xA4CF, 0xF900...0xFAFF, 0xFF66...0xFF9F, 0x1B000...0x1B16F, 0x20000...0x3FFFF => true, // Chinese, Japanese
        else => false,
    };
}

comptime {
    cuttlefish.exportBlock(Classify);
}
