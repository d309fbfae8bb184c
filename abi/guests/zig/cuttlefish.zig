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

// Commands

/// The command a function below has just written for the host.
pub const Command = enum { infer, open, slice, slice_bytes, page_text, page_image, emit, done, fail };

/// Runs the model. `images` are handles.
pub const Inference = struct { prompt: []const u8, max_tokens: u32, images: []const u32 = &.{} };

/// Answered by `infer_done`.
pub fn infer(inference: Inference) Command {
    return write(.{
        .cmd = Command.infer,
        .prompt = inference.prompt,
        .max_tokens = inference.max_tokens,
        .images = inference.images,
    });
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

/// Asks for a picture of a page, counted from zero. Answered by `page_imaged`.
pub fn pageImage(handle: u32, page: u32) Command {
    return write(.{ .cmd = Command.page_image, .handle = handle, .page = page });
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
    infer_done: struct { text: []const u8, tokens_out: u64 },
    opened: Opened,
    sliced: Window,
    sliced_bytes: Window,
    page_texted: struct { text: []const u8 },
    page_imaged: struct { handle: u32, len: u64 },
    emitted,
};

/// An open file; `len` is its size in bytes.
pub const Opened = struct { handle: u32, len: u64, kind: Kind };

/// What a file holds.
pub const Kind = union(enum) {
    text,
    image: struct { format: []const u8 },
    document: Document,
    binary,
};

pub const Document = struct { pages: u32, has_text_layer: bool };

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
/// - `init(*Block, Input) Command` and `step(*Block, Event) Command`;
/// - if it wants to see each token, `onToken(*Block, []const u8) Verdict`.
///
/// Neither unreadable input nor an event that does not answer the last command reaches the block;
/// they end it with the codes `bad_input` and `bad_event`.
pub fn exportBlock(comptime Block: type) void {
    const exports = struct {
        var block: Block = .{};

        fn init(address: usize, len: usize) callconv(.c) *const Descriptor {
            _ = run_arena.reset(.retain_capacity);
            _ = step_arena.reset(.retain_capacity);
            block = .{};
            // The input must outlast the buffer it came in, which the first event overwrites.
            const input = readJson(Block.Input, run_arena.allocator(), bytesAt(address, len), .alloc_always) catch
                return answer(fail("bad_input", "the input is not " ++ Block.signature.input));
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
            writeJson(Block.signature);
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

/// Small messages are the rule; this many bytes spare most blocks a second allocation.
const smallest_input_buffer = 4096;

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

/// A host may pass any address with length 0, even 0 itself, which no Zig pointer may hold.
fn bytesAt(address: usize, len: usize) []const u8 {
    if (len == 0) return "";
    return @as([*]const u8, @ptrFromInt(address))[0..len];
}

fn write(command: anytype) Command {
    writeJson(command);
    return command.cmd;
}

fn writeJson(value: anytype) void {
    written.clearRetainingCapacity();
    std.json.Stringify.value(value, .{}, &written.writer) catch @trap();
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
    tokens_out: ?Whole(u64) = null,
    handle: ?Whole(u32) = null,
    len: ?Whole(u64) = null,
    kind: ?WireKind = null,
    next_offset: ?Whole(u64) = null,
    bytes_base64: ?Text = null,
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
        .infer_done => .{ .infer_done = .{ .text = try bytesOf(wire.text), .tokens_out = try numberOf(wire.tokens_out) } },
        .opened => .{ .opened = .{
            .handle = try numberOf(wire.handle),
            .len = try numberOf(wire.len),
            .kind = if (wire.kind) |kind| try readKind(kind) else .text,
        } },
        .sliced => .{ .sliced = .{ .bytes = try bytesOf(wire.text), .next_offset = try numberOf(wire.next_offset) } },
        .sliced_bytes => .{ .sliced_bytes = .{
            .bytes = try decodeBase64(try bytesOf(wire.bytes_base64)),
            .next_offset = try numberOf(wire.next_offset),
        } },
        .page_texted => .{ .page_texted = .{ .text = try bytesOf(wire.text) } },
        .page_imaged => .{ .page_imaged = .{ .handle = try numberOf(wire.handle), .len = try numberOf(wire.len) } },
        .emitted => .emitted,
    };
}

fn readKind(wire: WireKind) error{Unreadable}!Kind {
    const name = std.meta.stringToEnum(std.meta.Tag(Kind), wire.kind.bytes) orelse return error.Unreadable;
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
        .open => .opened,
        .slice => .sliced,
        .slice_bytes => .sliced_bytes,
        .page_text => .page_texted,
        .page_image => .page_imaged,
        .emit => .emitted,
        .done, .fail => return false,
    };
    return event == expected;
}
