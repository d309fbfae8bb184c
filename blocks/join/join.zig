//! Joins texts into one.
//!
//! The items themselves are passed on as they came, whatever else they hold.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const MiB = 1024 * 1024;

/// How long the result may be as JSON: it holds the items and, once more, their texts.
const most_bytes = 32 * MiB;

const Join = struct {
    pub const signature: cuttlefish.Signature = .{
        .input = "{items: [json]}",
        .output = "{text: text, items: [json], count: number}",
    };
    pub const options = "texts separator and title";
    pub const Input = struct {
        items: []const cuttlefish.Json,
        separator: cuttlefish.Text = .{ .bytes = "\n\n" },
        title: cuttlefish.Text = .{ .bytes = "" },
    };

    pub fn init(_: *Join, input: Input) cuttlefish.Command {
        const allocator = cuttlefish.runAllocator();
        var parts: std.ArrayList([]const u8) = .empty;
        var between: []const u8 = "";
        var size: u64 = 0;
        const title = core(input.title.bytes);
        if (title.len > 0) {
            parts.append(allocator, title) catch @trap();
            between = "\n\n";
        }
        for (input.items, 0..) |item, index| {
            const text = core(textOf(item) orelse return refuse(item, index));
            size += item.source.len + 1;
            if (text.len == 0) continue;
            parts.appendSlice(allocator, &.{ between, text }) catch @trap();
            between = input.separator.bytes;
        }
        for (parts.items) |part| size += cuttlefish.utf8.jsonBytes(part);
        if (size > most_bytes) return cuttlefish.fail("too_large", cuttlefish.format(
            "the items and the joined text take more than {d} MiB. Join fewer of them, or shorten them first.",
            .{most_bytes / MiB},
        ));
        return cuttlefish.done(.{ .text = Joined{ .parts = parts.items }, .items = input.items, .count = input.items.len });
    }

    pub fn step(_: *Join, event: cuttlefish.Event) cuttlefish.Command {
        return cuttlefish.unexpected(event);
    }
};

/// Texts that are written as one, without a copy of it in memory.
const Joined = struct {
    parts: []const []const u8,

    pub fn jsonStringify(joined: Joined, writer: anytype) !void {
        try writer.beginWriteRaw();
        try writer.writer.writeByte('"');
        for (joined.parts) |part| try std.json.Stringify.encodeJsonStringChars(part, .{}, writer.writer);
        try writer.writer.writeByte('"');
        writer.endWriteRaw();
    }
};

/// A text without the line breaks before it and the white space behind it.
fn core(text: []const u8) []const u8 {
    return std.mem.trimStart(u8, std.mem.trimEnd(u8, text, &std.ascii.whitespace), "\r\n");
}

/// What an item says; null if it says nothing that could be joined.
fn textOf(item: cuttlefish.Json) ?[]const u8 {
    return switch (item.form()) {
        .text => (item.read(cuttlefish.Text) orelse return null).bytes,
        .object => {
            const members = item.read(struct { text: ?cuttlefish.Json = null, summary: ?cuttlefish.Json = null }) orelse return null;
            for ([_]?cuttlefish.Json{ members.text, members.summary }) |member| {
                const text = member orelse continue;
                return if (text.form() == .text) textOf(text) else null;
            }
            return null;
        },
        else => null,
    };
}

fn refuse(item: cuttlefish.Json, index: usize) cuttlefish.Command {
    const what = switch (item.form()) {
        .text, .null => "null",
        .number => "a number",
        .bool => "true or false",
        .list => "a list",
        .object => "a record without a text in \"text\" or \"summary\"",
    };
    return cuttlefish.fail("bad_item", cuttlefish.format(
        "items[{d}] is {s}, and join takes texts, or records with a text in the field \"text\" or \"summary\".",
        .{ index, what },
    ));
}

comptime {
    cuttlefish.exportBlock(Join);
}
