//! Write a Cuttlefish block in Zig.
//!
//! A block is a struct whose fields are its state and whose functions answer with commands. The
//! host carries each command out and answers with an event:
//!
//!     const cuttlefish = @import("cuttlefish");
//!
//!     const Greeter = struct {
//!         pub const signature: cuttlefish.Signature = .{ .input = "{name: text}", .output = "text" };
//!         pub const Input = struct { name: cuttlefish.Text };
//!
//!         pub fn init(_: *Greeter, input: Input) cuttlefish.Command {
//!             const prompt = cuttlefish.format("Greet {s} in one short sentence.", .{input.name.bytes});
//!             return cuttlefish.infer(.{ .prompt = prompt, .max_tokens = 32 });
//!         }
//!
//!         pub fn step(_: *Greeter, event: cuttlefish.Event) cuttlefish.Command {
//!             return switch (event) {
//!                 .infer_done => |reply| cuttlefish.done(reply.text),
//!                 else => cuttlefish.unexpected(event),
//!             };
//!         }
//!     };
//!
//!     comptime {
//!         cuttlefish.exportBlock(Greeter);
//!     }
//!
//! How long things live:
//!
//! - the block's own fields, and the strings of its `Input`: until the next `init`;
//! - the strings of an `Event`, and what `format` and `stepAllocator` give: until `step` returns.
//!   Copy what must outlast the step, with `runAllocator`;
//! - a command: until the next one is written. Return it straight away.
//!
//! There is nobody to report a lack of memory to in the middle of a step, so it ends the guest with
//! a trap, as a stack that overflows does. Only `cf_alloc` can say it: it answers 0.

const std = @import("std");

const memory = std.heap.wasm_allocator;
const ArenaAllocator = std.heap.ArenaAllocator;

/// The types a block takes and gives, in the type language of the contract.
pub const Signature = struct { input: []const u8, output: []const u8 };

/// What `onToken` thinks of the text so far.
pub const Verdict = enum { go_on, stop };

/// A JSON string. Use it for the fields of an `Input`: for `[]const u8` std.json would take a list
/// of numbers as well.
pub const Text = struct {
    bytes: []const u8,

    pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !Text {
        if (try source.peekNextTokenType() != .string) return error.UnexpectedToken;
        return .{ .bytes = try std.json.innerParse([]const u8, allocator, source, options) };
    }
};

/// A JSON number without fraction or exponent. std.json alone would also take `"12"` and `1.0`.
pub fn Whole(comptime Integer: type) type {
    return struct {
        value: Integer,

        pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !@This() {
            return switch (try source.nextAllocMax(allocator, .alloc_if_needed, options.max_value_len.?)) {
                inline .number, .allocated_number => |digits| .{
                    .value = std.fmt.parseInt(Integer, digits, 10) catch return error.InvalidNumber,
                },
                else => error.UnexpectedToken,
            };
        }
    };
}

/// A JSON field that may be left out, but not be null: `?T` with a default takes both. Give it the default `.{}`.
pub fn Given(comptime T: type) type {
    return struct {
        value: ?T = null,

        pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !@This() {
            return .{ .value = try std.json.innerParse(T, allocator, source, options) };
        }
    };
}

/// A JSON number that may have a fraction, as it was written. Only a block that calls `of` or `value` pays for writing or
/// reading fractions, which takes some 20 KB of code. `of` serves in results too: std.json alone spells 1e300 out in 301 digits.
pub const Fraction = struct {
    digits: []const u8,

    /// The shortest number that reads as `value`, which is finite. Good for the step under way.
    pub fn of(number: f64) Fraction {
        if (!std.math.isFinite(number)) @trap(); // no JSON says it
        const is_short = number == 0 or (@abs(number) >= 1e-6 and @abs(number) < 1e15);
        return .{ .digits = if (is_short) format("{d}", .{number}) else format("{e}", .{number}) };
    }

    /// The nearest double; infinite if the number is too large for one.
    pub fn value(fraction: Fraction) f64 {
        return std.fmt.parseFloat(f64, fraction.digits) catch unreachable;
    }

    pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !Fraction {
        if (try source.peekNextTokenType() != .number) return error.UnexpectedToken;
        return .{ .digits = (try Json.jsonParse(allocator, source, options)).source };
    }

    pub fn jsonStringify(fraction: Fraction, writer: anytype) !void {
        try writer.print("{s}", .{fraction.digits});
    }
};

/// A JSON value of any kind, as it was written. It is passed on unchanged, whatever it holds, and
/// without the time and memory that reading it would take.
pub const Json = struct {
    source: []const u8,

    /// Any value std.json can write, as JSON. Good for the step under way.
    pub fn of(value: anytype) Json {
        return .{ .source = std.json.Stringify.valueAlloc(stepAllocator(), value, .{}) catch @trap() };
    }

    pub const Form = enum { text, number, bool, null, list, object };

    pub fn form(value: Json) Form {
        return switch (value.source[0]) {
            '"' => .text,
            '{' => .object,
            '[' => .list,
            't', 'f' => .bool,
            'n' => .null,
            else => .number,
        };
    }

    /// The value as a `T`, good for the step under way; null if it is not one.
    pub fn read(value: Json, comptime T: type) ?T {
        return value.readWith(T, stepAllocator());
    }

    /// The same, in memory of another lifetime. What needs no memory lies in the value itself.
    pub fn readWith(value: Json, comptime T: type, allocator: std.mem.Allocator) ?T {
        return readJson(T, allocator, value.source, .alloc_if_needed) catch null;
    }

    pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !Json {
        _ = try source.peekNextTokenType(); // goes past the white space before the value
        const start = source.cursor;
        try source.skipValue();
        const written_as = source.input[start..source.cursor];
        return .{ .source = if (options.allocate == .alloc_always) try allocator.dupe(u8, written_as) else written_as };
    }

    pub fn jsonStringify(value: Json, writer: anytype) !void {
        try writer.print("{s}", .{value.source});
    }
};

/// The members of a JSON object whose names are not known beforehand, in their order.
pub const Members = struct {
    all: []const Member,

    pub const Member = struct { name: []const u8, value: Json };

    pub fn find(members: Members, name: []const u8) ?Json {
        for (members.all) |member| {
            if (std.mem.eql(u8, member.name, name)) return member.value;
        }
        return null;
    }

    pub fn jsonParse(allocator: std.mem.Allocator, source: anytype, options: std.json.ParseOptions) !Members {
        if (try source.next() != .object_begin) return error.UnexpectedToken;
        var members: std.ArrayList(Member) = .empty;
        while (try source.peekNextTokenType() == .string) {
            const name = try std.json.innerParse([]const u8, allocator, source, options);
            if (find(.{ .all = members.items }, name) != null) return error.DuplicateField;
            try members.append(allocator, .{ .name = name, .value = try Json.jsonParse(allocator, source, options) });
        }
        _ = try source.next();
        return .{ .all = members.items };
    }
};

// Commands

/// The command a function below has just written for the host.
pub const Command = enum {
    infer,
    embed,
    open,
    slice,
    slice_bytes,
    page_text,
    page_text_opt,
    document_text,
    page_image,
    image_op,
    emit,
    done,
    fail,
};

/// What to ask the model. `images` are handles.
pub const Inference = struct {
    prompt: []const u8,
    max_tokens: u32,
    images: []const u32 = &.{},
    options: InferenceOptions = .{},
};

/// How the model chooses its words; what is null is left to the host. The contract says what each may be.
pub const InferenceOptions = struct {
    temperature: ?Fraction = null,
    seed: ?u32 = null,
    /// The reply ends before the first of these.
    stop: ?[]const []const u8 = null,
    /// The reply is JSON that fits this JSON Schema, or the job fails. An older host takes no notice of it.
    schema: ?Json = null,
};

/// Runs the model. Answered by `infer_done`.
pub fn infer(inference: Inference) Command {
    const options = inference.options;
    const has_options = options.temperature != null or options.seed != null or options.stop != null or options.schema != null;
    return writeWith(.{ .emit_null_optional_fields = false }, .{
        .cmd = Command.infer,
        .prompt = inference.prompt,
        .max_tokens = inference.max_tokens,
        .images = inference.images,
        .options = if (has_options) @as(?InferenceOptions, options) else null,
    });
}

/// Asks for a vector for each text. Answered by `embedded`.
pub fn embed(texts: []const []const u8) Command {
    return write(.{ .cmd = Command.embed, .texts = texts });
}

/// Answered by `opened`.
pub fn open(path: []const u8) Command {
    return write(.{ .cmd = Command.open, .path = path });
}

/// Asks for the whole characters within `len` bytes of a text. Answered by `sliced`.
pub fn slice(handle: u32, offset: u64, len: u64) Command {
    return write(.{ .cmd = Command.slice, .handle = handle, .offset = offset, .len = len });
}

/// Asks for bytes of anything that is open. Answered by `sliced_bytes`.
pub fn sliceBytes(handle: u32, offset: u64, len: u64) Command {
    return write(.{ .cmd = Command.slice_bytes, .handle = handle, .offset = offset, .len = len });
}

/// Asks for the text layer of a page, counted from zero. Answered by `page_texted`.
pub fn pageText(handle: u32, page: u32) Command {
    return write(.{ .cmd = Command.page_text, .handle = handle, .page = page });
}

/// Asks for the text layer of a page, or for the reason why it cannot be read: `pageText` would end
/// the job. Answered by `page_text_attempted`.
pub fn pageTextOpt(handle: u32, page: u32) Command {
    return write(.{ .cmd = Command.page_text_opt, .handle = handle, .page = page });
}

/// Asks for the text of all pages in one, with a blank line between two. Answered by `page_texted`.
pub fn documentText(handle: u32) Command {
    return write(.{ .cmd = Command.document_text, .handle = handle });
}

/// Asks for a picture of a page, counted from zero. Answered by `page_imaged`.
pub fn pageImage(handle: u32, page: u32) Command {
    return write(.{ .cmd = Command.page_image, .handle = handle, .page = page });
}

/// What can be made of an image.
pub const ImageOp = union(enum) {
    /// A copy that fits into a box: proportions are kept, and a small image stays as it is.
    resize: struct { max_width: u32, max_height: u32 },
    /// A part, in pixels from the upper left corner. It must lie wholly inside.
    crop: struct { x: u32, y: u32, width: u32, height: u32 },
    /// One frame of an animation, counted from 0.
    frame: struct { index: u32 },

    pub fn jsonStringify(op: ImageOp, writer: anytype) !void {
        try writer.beginObject();
        try writer.objectField("op");
        try writer.write(std.meta.activeTag(op));
        switch (op) {
            inline else => |fields| inline for (@typeInfo(@TypeOf(fields)).@"struct".field_names) |field| {
                try writer.objectField(field);
                try writer.write(@field(fields, field));
            },
        }
        try writer.endObject();
    }
};

/// Asks for a changed copy of an image: `imageOp(handle, .{ .resize = .{ .max_width = 640, .max_height = 640 } })`.
/// Answered by `page_imaged`.
pub fn imageOp(handle: u32, op: ImageOp) Command {
    return write(.{ .cmd = Command.image_op, .handle = handle, .op = op });
}

/// Shows progress, any value std.json can write, to whoever watches. Answered by `emitted`.
pub fn emit(progress: anytype) Command {
    return write(.{ .cmd = Command.emit, .progress = progress });
}

/// Ends the block with its result, any value std.json can write.
pub fn done(result: anytype) Command {
    return write(.{ .cmd = Command.done, .result = result });
}

/// Ends the block: `code` for programs, `message` for people (what happened, and what to do).
pub fn fail(code: []const u8, message: []const u8) Command {
    return write(.{ .cmd = Command.fail, .code = code, .message = message });
}

/// Ends the block because an event makes no sense here. For the `else` of a block's `switch`.
pub fn unexpected(event: Event) Command {
    return fail("bad_event", format("the host answered \"{t}\" with \"{t}\"", .{ last_command, event }));
}

/// Ends the block because a window does not lead on from `offset`.
pub fn stuck(window: Window, offset: u64, len: u64) Command {
    return fail("bad_event", format(
        "the host answered a request at byte {d} of {d} with next_offset {d}, which leads nowhere",
        .{ offset, len, window.next_offset },
    ));
}

// Events

/// What the host answers. Fields that a newer host adds are ignored.
pub const Event = union(enum) {
    infer_done: Reply,
    embedded: Embedded,
    opened: Opened,
    sliced: Window,
    sliced_bytes: Window,
    page_texted: PageText,
    page_text_attempted: PageAttempt,
    page_imaged: Picture,
    emitted,
};

/// What the model said.
pub const Reply = struct {
    text: []const u8,
    tokens_out: u32,
    /// Who ended it; an older host does not tell.
    finish_reason: ?FinishReason,

    /// Whether the reply ends where `max_tokens`, the number that was asked with, cut it off: it is not what the model
    /// meant to say. Where the host does not tell, a reply that used up all tokens counts as cut.
    pub fn isCut(reply: Reply, max_tokens: u32) bool {
        const reason = reply.finish_reason orelse return reply.tokens_out >= max_tokens;
        return reason == .length;
    }
};

/// Who ended a reply: the model, `max_tokens`, or the block's `onToken`.
pub const FinishReason = enum { stop, length, stopped_by_block };

/// A vector for each text, in the order of the texts.
pub const Embedded = struct {
    vectors: []const []const Fraction,
};

/// An open file; `len` is its size in bytes.
pub const Opened = struct { handle: u32, len: u64, kind: Kind };

/// What a file holds. A kind that this SDK does not know is `binary`.
pub const Kind = union(enum) {
    text,
    image: struct { format: []const u8 },
    document: Document,
    binary,
};

pub const Document = struct { pages: u32, has_text_layer: bool };

/// A page's text, and how many images lie on the page; null where an older host, or the text of more
/// than one page, leaves that out.
pub const PageText = struct {
    text: []const u8,
    images: ?u32,
    /// The part of the page that its images cover, from 0 to 1.
    coverage: ?Fraction,
};

/// A page's text, or the code and reason why there is none.
pub const PageAttempt = union(enum) { text: []const u8, reason: []const u8 };

/// A new image; an older host does not tell its `format`. `frames` says how many the image has of which `frame` took one,
/// and is null after any other command.
pub const Picture = struct { handle: u32, len: u64, format: ?[]const u8, frames: ?u32 };

/// A piece of a file: UTF-8 for `slice`, anything for `sliceBytes`. Read on at `next_offset`.
pub const Window = struct {
    bytes: []const u8,
    next_offset: u64,

    /// Whether reading on at `next_offset` can reach the end. A block that follows offsets which
    /// stand still would ask for ever; it answers with `stuck` instead.
    pub fn advances(window: Window, offset: u64, len: u64) bool {
        return window.next_offset > offset and window.next_offset <= len;
    }
};

// Text

/// What blocks ask of a text in UTF-8. A character is a code point.
pub const utf8 = struct {
    pub fn trimmed(all: []const u8) []const u8 {
        return std.mem.trim(u8, all, &std.ascii.whitespace);
    }

    pub fn startsCharacter(byte: u8) bool {
        return byte & 0b1100_0000 != 0b1000_0000;
    }

    pub fn characters(all: []const u8) usize {
        var count: usize = 0;
        for (all) |byte| count += @intFromBool(startsCharacter(byte));
        return count;
    }

    /// The first `count` characters, or all if there are fewer.
    pub fn first(all: []const u8, count: usize) []const u8 {
        var seen: usize = 0;
        for (all, 0..) |byte, index| {
            if (!startsCharacter(byte)) continue;
            if (seen == count) return all[0..index];
            seen += 1;
        }
        return all;
    }

    /// The character that begins at a byte.
    pub fn characterAt(all: []const u8, start: usize) u21 {
        var rest = std.unicode.Utf8View.initUnchecked(all[start..]).iterator();
        return rest.nextCodepoint().?;
    }

    /// The character that ends before a byte.
    pub fn characterBefore(all: []const u8, end: usize) u21 {
        var start = end - 1;
        while (!startsCharacter(all[start])) start -= 1;
        return characterAt(all, start);
    }

    /// The first `count` characters without white space around them, on one line: for quoting in a message. Good for
    /// the step under way.
    pub fn quotable(all: []const u8, count: usize) []const u8 {
        const quoted = stepAllocator().dupe(u8, first(trimmed(all), count)) catch @trap();
        for (quoted) |*byte| {
            if (std.ascii.isControl(byte.*)) byte.* = ' ';
        }
        return quoted;
    }

    /// How long a text is within a JSON string.
    pub fn jsonBytes(all: []const u8) u64 {
        var bytes: u64 = all.len;
        for (all) |byte| bytes += switch (byte) {
            '"', '\\', '\n', '\r', '\t', 0x08, 0x0C => 1,
            0...0x07, 0x0B, 0x0E...0x1F => 5,
            else => 0,
        };
        return bytes;
    }

    /// Whether a text says anything: it has a letter or digit of any script.
    pub fn hasWords(all: []const u8) bool {
        var rest = std.unicode.Utf8View.initUnchecked(all).iterator();
        while (rest.nextCodepoint()) |character| {
            if (isInWord(character)) return true;
        }
        return false;
    }

    /// Whether a character is a letter or digit, as far as a few ranges tell.
    pub fn isInWord(character: u21) bool {
        return switch (character) {
            0...0x7F => std.ascii.isAlphanumeric(@intCast(character)),
            0x80...0xA9, 0xAB...0xB4, 0xB6...0xB9, 0xBB...0xBF, 0xD7, 0xF7 => false, // Latin-1 controls and signs
            0x1680, 0x2000...0x206F => false, // spaces and general punctuation
            0x2190...0x2BFF => false, // arrows, boxes, shapes, bullets
            0x3000...0x3004, 0x3008...0x3020 => false, // spaces and brackets of East Asian scripts
            0xE000...0xF8FF => false, // private use: what a PDF font without names leaves behind
            0xFEFF, 0xFFFC, 0xFFFD => false, // byte order mark and replacements
            else => true,
        };
    }
};

// Memory

/// Memory until the next `init`; nothing is freed before. For state that grows and is then reused.
pub fn runAllocator() std.mem.Allocator {
    return run_arena.allocator();
}

/// Memory for the step under way.
pub fn stepAllocator() std.mem.Allocator {
    return step_arena.allocator();
}

/// Text made from a std.fmt pattern, good for the step under way.
pub fn format(comptime pattern: []const u8, values: anytype) []const u8 {
    return std.fmt.allocPrint(stepAllocator(), pattern, values) catch @trap();
}

/// Exports the `cf_*` functions of a block: a struct with
///
/// - defaults for all fields, because every `init` starts from them;
/// - `signature`, and `Input`, a type that std.json can read;
/// - if `Input` has fields beyond the signature's, which have defaults, `options`: their types, for people;
/// - `init(*Block, Input) Command` and `step(*Block, Event) Command`;
/// - if it wants to see each token, `onToken(*Block, []const u8) Verdict`.
///
/// Neither unreadable input nor an event that does not answer the last command reaches the block;
/// they end it with the codes `bad_input` and `bad_event`.
pub fn exportBlock(comptime Block: type) void {
    const exports = struct {
        var block: Block = .{};
        const options = if (@hasDecl(Block, "options")) " (optional: " ++ Block.options ++ ")" else "";

        fn init(address: usize, len: usize) callconv(.c) *const Descriptor {
            _ = run_arena.reset(.retain_capacity);
            _ = step_arena.reset(.retain_capacity);
            block = .{};
            const message = keepInput(bytesAt(address, len));
            const input = readJson(Block.Input, run_arena.allocator(), message, .alloc_if_needed) catch
                return answer(fail("bad_input", "the input is not " ++ Block.signature.input ++ options));
            return answer(block.init(input));
        }

        fn step(address: usize, len: usize) callconv(.c) *const Descriptor {
            _ = step_arena.reset(.retain_capacity);
            const event = readEvent(bytesAt(address, len)) catch
                return answer(fail("bad_event", format("the host answered \"{t}\" with an event that this block cannot read", .{last_command})));
            if (!answers(event, last_command)) return answer(unexpected(event));
            return answer(block.step(event));
        }

        fn onToken(address: usize, len: usize) callconv(.c) i32 {
            return switch (block.onToken(bytesAt(address, len))) {
                .go_on => 0,
                .stop => 1,
            };
        }

        fn signature() callconv(.c) *const Descriptor {
            writeJson(.{}, Block.signature);
            return describe();
        }
    };
    @export(&allocate, .{ .name = "cf_alloc" });
    @export(&exports.init, .{ .name = "cf_init" });
    @export(&exports.step, .{ .name = "cf_step" });
    @export(&exports.signature, .{ .name = "cf_signature" });
    if (@hasDecl(Block, "onToken")) @export(&exports.onToken, .{ .name = "cf_on_token" });
}

// How it works

const Descriptor = extern struct { address: usize = 0, len: usize = 0 };

var run_arena: ArenaAllocator = .init(memory);
var step_arena: ArenaAllocator = .init(memory);
var written: std.Io.Writer.Allocating = .init(memory);
var descriptor: Descriptor = .{};
var last_command: Command = .fail;
var input_buffer: []u8 = &.{};
var kept_input: []u8 = &.{};

/// Small messages are the rule; this many bytes spare most blocks a second allocation. A result is the largest thing that
/// most blocks write, so there is room for it from the start: memory then stays as it is from the first step to the last.
const smallest_input_buffer = 4096;
const smallest_output_buffer = 32 * 1024 - 64; // with the allocator's own bytes a whole slot of it

/// One buffer serves every message, because the host writes each straight before the call that
/// reads it.
fn allocate(len: usize) callconv(.c) ?[*]u8 {
    if (len > input_buffer.len or input_buffer.len == 0) {
        memory.free(input_buffer);
        input_buffer = &.{};
        input_buffer = memory.alloc(u8, @max(len, smallest_input_buffer)) catch return null;
    }
    return input_buffer.ptr;
}

/// The input's strings lie where they came in, so no event may overwrite that buffer before the next run; copying them
/// would double what a large input takes.
fn keepInput(message: []const u8) []const u8 {
    memory.free(kept_input);
    kept_input = input_buffer;
    input_buffer = &.{};
    return message;
}

/// A host may pass any address with length 0, even 0 itself, which no Zig pointer may hold.
fn bytesAt(address: usize, len: usize) []const u8 {
    if (len == 0) return "";
    return @as([*]const u8, @ptrFromInt(address))[0..len];
}

fn write(command: anytype) Command {
    return writeWith(.{}, command);
}

fn writeWith(options: std.json.Stringify.Options, command: anytype) Command {
    writeJson(options, command);
    return command.cmd;
}

fn writeJson(options: std.json.Stringify.Options, value: anytype) void {
    written.clearRetainingCapacity();
    written.ensureTotalCapacity(smallest_output_buffer) catch @trap();
    std.json.Stringify.value(value, options, &written.writer) catch @trap();
}

fn answer(command: Command) *const Descriptor {
    last_command = command;
    return describe();
}

fn describe() *const Descriptor {
    const json = written.written();
    descriptor = .{ .address = @intFromPtr(json.ptr), .len = json.len };
    return &descriptor;
}

fn readJson(comptime T: type, allocator: std.mem.Allocator, json: []const u8, copy: std.json.AllocWhen) error{Unreadable}!T {
    return std.json.parseFromSliceLeaky(T, allocator, json, .{
        .ignore_unknown_fields = true,
        .allocate = copy,
    }) catch |problem| switch (problem) {
        error.OutOfMemory => @trap(),
        else => error.Unreadable,
    };
}

/// Every field of every event. One flat struct reads a message in one pass, whatever the order of
/// its fields.
const WireEvent = struct {
    event: Text,
    text: ?Text = null,
    @"error": ?Text = null,
    images: ?Whole(u32) = null,
    coverage: ?Fraction = null,
    tokens_out: ?Whole(u32) = null,
    finish_reason: ?Text = null,
    vectors: ?[]const []const Fraction = null,
    handle: ?Whole(u32) = null,
    len: ?Whole(u64) = null,
    kind: Given(WireKind) = .{},
    next_offset: ?Whole(u64) = null,
    bytes_base64: ?Text = null,
    frames: ?Whole(u32) = null,
};

const WireKind = struct {
    kind: Text,
    format: ?Text = null,
    pages: ?Whole(u32) = null,
    has_text_layer: ?bool = null,
};

fn readEvent(json: []const u8) error{Unreadable}!Event {
    const wire = try readJson(WireEvent, stepAllocator(), json, .alloc_if_needed);
    const name = std.meta.stringToEnum(std.meta.Tag(Event), wire.event.bytes) orelse return error.Unreadable;
    return switch (name) {
        .infer_done => .{ .infer_done = .{
            .text = try bytesOf(wire.text),
            .tokens_out = try numberOf(wire.tokens_out),
            .finish_reason = if (wire.finish_reason) |reason|
                std.meta.stringToEnum(FinishReason, reason.bytes) orelse return error.Unreadable
            else
                null,
        } },
        .embedded => .{ .embedded = .{ .vectors = wire.vectors orelse return error.Unreadable } },
        .opened => .{ .opened = .{
            .handle = try numberOf(wire.handle),
            .len = try numberOf(wire.len),
            .kind = if (wire.kind.value) |kind| try readKind(kind) else .text,
        } },
        .sliced => .{ .sliced = .{ .bytes = try bytesOf(wire.text), .next_offset = try numberOf(wire.next_offset) } },
        .sliced_bytes => .{ .sliced_bytes = .{
            .bytes = try decodeBase64(try bytesOf(wire.bytes_base64)),
            .next_offset = try numberOf(wire.next_offset),
        } },
        .page_texted => .{ .page_texted = .{
            .text = try bytesOf(wire.text),
            .images = if (wire.images) |count| count.value else null,
            .coverage = wire.coverage,
        } },
        .page_text_attempted => .{ .page_text_attempted = try readAttempt(wire) },
        .page_imaged => .{ .page_imaged = .{
            .handle = try numberOf(wire.handle),
            .len = try numberOf(wire.len),
            .format = if (wire.kind.value) |kind| try bytesOf(kind.format) else null,
            .frames = if (wire.frames) |count| count.value else null,
        } },
        .emitted => .emitted,
    };
}

fn readKind(wire: WireKind) error{Unreadable}!Kind {
    const name = std.meta.stringToEnum(std.meta.Tag(Kind), wire.kind.bytes) orelse return .binary;
    return switch (name) {
        .text => .text,
        .image => .{ .image = .{ .format = try bytesOf(wire.format) } },
        .document => .{ .document = .{
            .pages = try numberOf(wire.pages),
            .has_text_layer = wire.has_text_layer orelse return error.Unreadable,
        } },
        .binary => .binary,
    };
}

fn readAttempt(wire: WireEvent) error{Unreadable}!PageAttempt {
    if (wire.@"error") |reason| {
        if (wire.text != null) return error.Unreadable;
        return .{ .reason = reason.bytes };
    }
    return .{ .text = try bytesOf(wire.text) };
}

fn bytesOf(text: ?Text) error{Unreadable}![]const u8 {
    return (text orelse return error.Unreadable).bytes;
}

fn numberOf(number: anytype) error{Unreadable}!@FieldType(std.meta.Child(@TypeOf(number)), "value") {
    return (number orelse return error.Unreadable).value;
}

fn decodeBase64(encoded: []const u8) error{Unreadable}![]const u8 {
    const decoder = std.base64.standard.Decoder;
    const size = decoder.calcSizeForSlice(encoded) catch return error.Unreadable;
    const bytes = stepAllocator().alloc(u8, size) catch @trap();
    decoder.decode(bytes, encoded) catch return error.Unreadable;
    return bytes;
}

fn answers(event: Event, command: Command) bool {
    const expected: std.meta.Tag(Event) = switch (command) {
        .infer => .infer_done,
        .embed => .embedded,
        .open => .opened,
        .slice => .sliced,
        .slice_bytes => .sliced_bytes,
        .page_text, .document_text => .page_texted,
        .page_text_opt => .page_text_attempted,
        .page_image, .image_op => .page_imaged,
        .emit => .emitted,
        .done, .fail => return false,
    };
    return event == expected;
}
