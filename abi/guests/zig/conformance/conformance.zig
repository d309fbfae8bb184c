//! Uses the whole of cuttlefish.zig; abi/guests/CONFORMANCE.md says what it must do.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const Command = cuttlefish.Command;
const Fraction = cuttlefish.Fraction;
const Given = cuttlefish.Given;
const Json = cuttlefish.Json;
const Text = cuttlefish.Text;
const Whole = cuttlefish.Whole;

const Conformance = struct {
    requests: []const Json = &.{},
    stop_at: []const u8 = "",
    rounds: u64 = 0,
    next: usize = 0,

    /// What the round has seen so far, as JSON with a comma before each.
    seen: std.ArrayList(u8) = .empty,
    tokens: std.ArrayList(u8) = .empty,

    pub const signature: cuttlefish.Signature = .{ .input = "{requests: [json], stop_at: text, rounds: number}", .output = "json" };
    pub const Input = struct { requests: []const Json, stop_at: Text, rounds: Whole(u64) };

    pub fn init(self: *Conformance, input: Input) Command {
        if (input.rounds.value == 0) return cuttlefish.fail("bad_input", "rounds is 0. Give at least one.");
        self.requests = input.requests;
        self.stop_at = input.stop_at.bytes;
        self.rounds = input.rounds.value;
        return self.goOn();
    }

    pub fn step(self: *Conformance, event: cuttlefish.Event) Command {
        add(&self.seen, see(event));
        return self.goOn();
    }

    pub fn onToken(self: *Conformance, token: []const u8) cuttlefish.Verdict {
        add(&self.tokens, Json.of(token));
        return if (std.mem.eql(u8, token, self.stop_at)) .stop else .go_on;
    }

    fn goOn(self: *Conformance) Command {
        if (self.next == self.requests.len) {
            self.rounds -= 1;
            if (self.rounds == 0 or self.requests.len == 0) return cuttlefish.done(.{ .seen = list(&self.seen), .tokens = list(&self.tokens) });
            self.next = 0;
            self.seen.clearRetainingCapacity();
            self.tokens.clearRetainingCapacity();
        }
        const request = self.requests[self.next];
        self.next += 1;
        return issue(request) orelse cuttlefish.fail("bad_input", cuttlefish.format("requests[{d}] is no command", .{self.next - 1}));
    }
};

fn add(all: *std.ArrayList(u8), one: Json) void {
    all.append(cuttlefish.runAllocator(), ',') catch @trap();
    all.appendSlice(cuttlefish.runAllocator(), one.source) catch @trap();
}

fn list(all: *std.ArrayList(u8)) Json {
    if (all.items.len == 0) return .{ .source = "[]" };
    all.items[0] = '[';
    all.append(cuttlefish.runAllocator(), ']') catch @trap();
    return .{ .source = all.items };
}

// Requests

const OfHandle = struct { handle: Whole(u32) };
const OfPage = struct { handle: Whole(u32), page: Whole(u32) };
const OfWindow = struct { handle: Whole(u32), offset: Whole(u64), len: Whole(u64) };

const OfInference = struct {
    prompt: Text,
    max_tokens: Whole(u32),
    images: []const Whole(u32) = &.{},
    options: Options = .{},

    const Options = struct {
        temperature: Given(Fraction) = .{},
        seed: Given(Whole(u32)) = .{},
        stop: Given([]const Text) = .{},
        schema: Given(Json) = .{},
    };
};

/// Issues a request; null if it is no command.
fn issue(request: Json) ?Command {
    const named = request.read(struct { cmd: Text }) orelse return null;
    switch (std.meta.stringToEnum(Command, named.cmd.bytes) orelse return null) {
        .infer => return infer(request.read(OfInference) orelse return null),
        .embed => {
            const wanted = request.read(struct { texts: []const Text }) orelse return null;
            return cuttlefish.embed(bytesOf(wanted.texts));
        },
        .open => {
            const wanted = request.read(struct { path: Text }) orelse return null;
            return cuttlefish.open(wanted.path.bytes);
        },
        .slice => {
            const wanted = request.read(OfWindow) orelse return null;
            return cuttlefish.slice(wanted.handle.value, wanted.offset.value, wanted.len.value);
        },
        .slice_bytes => {
            const wanted = request.read(OfWindow) orelse return null;
            return cuttlefish.sliceBytes(wanted.handle.value, wanted.offset.value, wanted.len.value);
        },
        .page_text => {
            const wanted = request.read(OfPage) orelse return null;
            return cuttlefish.pageText(wanted.handle.value, wanted.page.value);
        },
        .page_text_opt => {
            const wanted = request.read(OfPage) orelse return null;
            return cuttlefish.pageTextOpt(wanted.handle.value, wanted.page.value);
        },
        .document_text => {
            const wanted = request.read(OfHandle) orelse return null;
            return cuttlefish.documentText(wanted.handle.value);
        },
        .page_image => {
            const wanted = request.read(OfPage) orelse return null;
            return cuttlefish.pageImage(wanted.handle.value, wanted.page.value);
        },
        .image_op => {
            const wanted = request.read(struct { handle: Whole(u32), op: Json }) orelse return null;
            return cuttlefish.imageOp(wanted.handle.value, readOp(wanted.op) orelse return null);
        },
        .emit => {
            const wanted = request.read(struct { progress: Json }) orelse return null;
            return cuttlefish.emit(wanted.progress);
        },
        .done => {
            const wanted = request.read(struct { result: Json }) orelse return null;
            return cuttlefish.done(wanted.result);
        },
        .fail => {
            const wanted = request.read(struct { code: Text, message: Text }) orelse return null;
            return cuttlefish.fail(wanted.code.bytes, wanted.message.bytes);
        },
    }
}

fn infer(wanted: OfInference) ?Command {
    const options = wanted.options;
    if (options.schema.value) |schema| if (schema.form() != .object) return null;
    const images = stepSlice(u32, wanted.images.len);
    for (wanted.images, images) |from, *to| to.* = from.value;
    return cuttlefish.infer(.{
        .prompt = wanted.prompt.bytes,
        .max_tokens = wanted.max_tokens.value,
        .images = images,
        .options = .{
            .temperature = if (options.temperature.value) |temperature| Fraction.of(temperature.value()) else null,
            .seed = if (options.seed.value) |seed| seed.value else null,
            .stop = if (options.stop.value) |texts| bytesOf(texts) else null,
            .schema = options.schema.value,
        },
    });
}

fn readOp(source: Json) ?cuttlefish.ImageOp {
    const named = source.read(struct { op: Text }) orelse return null;
    switch (std.meta.stringToEnum(std.meta.Tag(cuttlefish.ImageOp), named.op.bytes) orelse return null) {
        inline else => |tag| {
            const Fields = @FieldType(cuttlefish.ImageOp, @tagName(tag));
            const members = source.read(cuttlefish.Members) orelse return null;
            var fields: Fields = undefined;
            inline for (@typeInfo(Fields).@"struct".field_names) |field| {
                const value = members.find(field) orelse return null;
                @field(fields, field) = (value.read(Whole(u32)) orelse return null).value;
            }
            return @unionInit(cuttlefish.ImageOp, @tagName(tag), fields);
        },
    }
}

fn bytesOf(texts: []const Text) []const []const u8 {
    const all = stepSlice([]const u8, texts.len);
    for (texts, all) |from, *to| to.* = from.bytes;
    return all;
}

fn stepSlice(comptime T: type, count: usize) []T {
    return cuttlefish.stepAllocator().alloc(T, count) catch @trap();
}

// Events

fn see(event: cuttlefish.Event) Json {
    const name = @tagName(event);
    return switch (event) {
        .infer_done => |reply| Json.of(.{
            .event = name,
            .text = reply.text,
            .tokens_out = reply.tokens_out,
            .finish_reason = reply.finish_reason,
        }),
        .embedded => |embedded| Json.of(.{ .event = name, .vectors = numbersOf(embedded.vectors) }),
        .opened => |opened| Json.of(.{ .event = name, .handle = opened.handle, .len = opened.len, .kind = seeKind(opened.kind) }),
        .sliced => |window| Json.of(.{ .event = name, .text = window.bytes, .next_offset = window.next_offset }),
        .sliced_bytes => |window| Json.of(.{
            .event = name,
            .hex = cuttlefish.format("{x}", .{window.bytes}),
            .next_offset = window.next_offset,
        }),
        .page_texted => |page| Json.of(.{
            .event = name,
            .text = page.text,
            .images = page.images,
            .coverage = if (page.coverage) |part| Fraction.of(part.value()) else null,
        }),
        .page_text_attempted => |attempt| switch (attempt) {
            .text => |text| Json.of(.{ .event = name, .text = text, .@"error" = null }),
            .reason => |reason| Json.of(.{ .event = name, .text = null, .@"error" = reason }),
        },
        .page_imaged => |picture| Json.of(.{
            .event = name,
            .handle = picture.handle,
            .len = picture.len,
            .format = picture.format,
            .frames = picture.frames,
        }),
        .emitted => Json.of(.{ .event = name }),
    };
}

fn seeKind(kind: cuttlefish.Kind) Json {
    const name = @tagName(kind);
    return switch (kind) {
        .text, .binary => Json.of(.{ .kind = name }),
        .image => |image| Json.of(.{ .kind = name, .format = image.format }),
        .document => |document| Json.of(.{ .kind = name, .pages = document.pages, .has_text_layer = document.has_text_layer }),
    };
}

/// Each number as the double that it stands for.
fn numbersOf(vectors: []const []const Fraction) []const []const Fraction {
    const all = stepSlice([]const Fraction, vectors.len);
    for (vectors, all) |vector, *to| {
        const numbers = stepSlice(Fraction, vector.len);
        for (vector, numbers) |fraction, *number| number.* = Fraction.of(fraction.value());
        to.* = numbers;
    }
    return all;
}

comptime {
    cuttlefish.exportBlock(Conformance);
}
