//! Reads values out of a text, as one JSON object with the keys that were asked for.
//!
//! The host is asked for a reply that fits a JSON Schema made from the fields. It is checked all the same, because older hosts
//! take no notice of a schema: what comes out has exactly the fields that were asked for, each of its type or null.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const utf8 = cuttlefish.utf8;
const Json = cuttlefish.Json;
const Members = cuttlefish.Members;

/// How long a text may be unless the input says otherwise: a small model's context is short.
const default_max_chars = 4000;

const most_fields = 50;
const longest_name = 100; // characters

/// How much of a reply a failure quotes, and the second prompt.
const quoted_chars = 200;
const repeated_chars = 1000;

/// What a value takes at most, with its name and signs, and all of them together.
const field_tokens = 120;
const most_tokens = 1536;

/// A number that every reader of JSON understands. The host refuses one that is too large for a double.
const longest_number = 64;
const most_exponent_digits = 2;

const prompt_pattern =
    \\Read this text.
    \\
    \\<text>
    \\{s}
    \\</text>
    \\
    \\Answer with one JSON object and nothing else. It has exactly these keys:
    \\
    \\{s}
    \\Write null for what the text does not say. Do not guess.
;

const repair_pattern =
    \\{s}
    \\
    \\You answered before:
    \\
    \\{s}
    \\
    \\That cannot be used: {s}. Answer again, with the JSON object alone.
;

const Type = enum { text, number, bool };

const Field = struct { name: []const u8, type: Type, description: []const u8 };

const Extract = struct {
    text: []const u8 = "",
    fields: []const Field = &.{},
    uses_schema: bool = true,
    is_second_try: bool = false,
    /// What the second try is told: the reply to the first, and what is wrong with it.
    first_reply: []const u8 = "",
    first_problem: []const u8 = "",

    pub const signature: cuttlefish.Signature = .{ .input = "{text: text, fields: json}", .output = "{values: json}" };
    pub const options = "the whole number max_chars, and schema, which is true or false";
    pub const Input = struct {
        text: cuttlefish.Text,
        fields: Json,
        max_chars: cuttlefish.Whole(u32) = .{ .value = default_max_chars },
        schema: bool = true,
    };

    pub fn init(self: *Extract, input: Input) cuttlefish.Command {
        self.fields = switch (readFields(input.fields)) {
            .fields => |fields| fields,
            .problem => |problem| return cuttlefish.fail("bad_fields", problem),
        };
        self.uses_schema = input.schema;
        self.text = utf8.trimmed(input.text.bytes);
        if (!utf8.hasWords(self.text)) return cuttlefish.fail("no_text", "the text has no letter or digit, so it holds no values. Give a text with words.");
        const length = utf8.characters(self.text);
        // What is cut off might hold a value, and null would then be wrong.
        if (length > input.max_chars.value) return cuttlefish.fail("too_large", cuttlefish.format(
            "the text has {d} characters, and max_chars is {d}. Cut it with the block \"chunk\" first, or set max_chars to what your model's context holds.",
            .{ length, input.max_chars.value },
        ));
        return self.ask();
    }

    pub fn step(self: *Extract, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .emitted => self.ask(),
            .infer_done => |reply| self.read(reply),
            else => cuttlefish.unexpected(event),
        };
    }

    fn ask(self: *Extract) cuttlefish.Command {
        var list: []const u8 = "";
        for (self.fields) |field| list = cuttlefish.format("{s}- \"{s}\" ({s}){s}{s}\n", .{
            list,
            field.name,
            switch (field.type) {
                .text => "text in quotes",
                .number => "a number",
                .bool => "true or false",
            },
            if (field.description.len > 0) ": " else "",
            field.description,
        });
        const prompt = cuttlefish.format(prompt_pattern, .{ self.text, list });
        return cuttlefish.infer(.{
            .prompt = if (self.is_second_try)
                cuttlefish.format(repair_pattern, .{ prompt, self.first_reply, self.first_problem })
            else
                prompt,
            .max_tokens = self.replyTokens(),
            .options = .{ .schema = if (self.uses_schema) Json.of(Schema{ .fields = self.fields }) else null },
        });
    }

    fn replyTokens(self: *const Extract) u32 {
        return @intCast(@min(most_tokens, field_tokens * (1 + self.fields.len)));
    }

    fn read(self: *Extract, reply: cuttlefish.Reply) cuttlefish.Command {
        const problem = switch (readReply(reply.text, self.fields)) {
            .values => |values| return cuttlefish.done(.{ .values = values }),
            .problem => |problem| if (reply.isCut(self.replyTokens()))
                cuttlefish.format("{s}, and it was cut off after {d} tokens", .{ problem, reply.tokens_out })
            else
                problem,
        };
        if (!self.is_second_try) {
            self.is_second_try = true;
            self.first_reply = copied(utf8.first(utf8.trimmed(reply.text), repeated_chars));
            self.first_problem = copied(problem);
            return cuttlefish.emit(.{ .stage = "asking again", .done = 1, .of = 2 });
        }
        return cuttlefish.fail("no_json", cuttlefish.format(
            "asked twice, the model answered \"{s}\": {s}. Use a larger model, fewer fields, or plainer descriptions.",
            .{ utf8.quotable(reply.text, quoted_chars), problem },
        ));
    }
};

// What is asked for

fn readFields(source: Json) union(enum) { fields: []const Field, problem: []const u8 } {
    const members = source.readWith(Members, cuttlefish.runAllocator()) orelse return .{
        .problem = "fields is not a record. Give a record of names and descriptions, such as {\"total\": \"the sum to pay\"}.",
    };
    if (members.all.len == 0) return .{ .problem = "fields is empty. Name at least one field, such as {\"total\": \"the sum to pay\"}." };
    if (members.all.len > most_fields) return .{ .problem = cuttlefish.format(
        "there are {d} fields, and one prompt asks for at most {d}. Extract in several steps.",
        .{ members.all.len, most_fields },
    ) };
    const fields = cuttlefish.runAllocator().alloc(Field, members.all.len) catch @trap();
    for (members.all, fields) |member, *field| {
        if (!isName(member.name)) return .{ .problem = cuttlefish.format(
            "the field \"{s}\" has a name that a small model cannot repeat: use up to {d} characters, without quotes, backslashes and line breaks.",
            .{ utf8.quotable(member.name, longest_name), longest_name },
        ) };
        field.* = readField(member) orelse return .{ .problem = cuttlefish.format(
            "the field \"{s}\" is neither a description nor a record of type (\"text\", \"number\" or \"bool\") and description.",
            .{member.name},
        ) };
    }
    return .{ .fields = fields };
}

fn readField(member: Members.Member) ?Field {
    var field: Field = .{ .name = member.name, .type = .text, .description = "" };
    if (member.value.form() == .text) {
        field.description = textOf(member.value) orelse return null;
        return field;
    }
    const parts = member.value.read(Members) orelse return null;
    for (parts.all) |part| {
        const text = textOf(part.value) orelse return null;
        if (std.mem.eql(u8, part.name, "description")) {
            field.description = text;
        } else if (std.mem.eql(u8, part.name, "type")) {
            field.type = std.meta.stringToEnum(Type, text) orelse return null;
        } else return null;
    }
    return field;
}

fn textOf(value: Json) ?[]const u8 {
    return utf8.trimmed((value.readWith(cuttlefish.Text, cuttlefish.runAllocator()) orelse return null).bytes);
}

/// The JSON Schema of a reply. It sets no lengths: an engine that keeps to them would cut a value, which then looks whole.
const Schema = struct {
    fields: []const Field,

    pub fn jsonStringify(self: Schema, writer: anytype) !void {
        try writer.beginObject();
        try writer.objectField("type");
        try writer.write("object");
        try writer.objectField("properties");
        try writer.beginObject();
        for (self.fields) |field| {
            try writer.objectField(field.name);
            const name = switch (field.type) {
                .text => "string",
                .number => "number",
                .bool => "boolean",
            };
            try writer.write(.{ .type = [_][]const u8{ name, "null" } });
        }
        try writer.endObject();
        try writer.objectField("required");
        try writer.beginArray();
        for (self.fields) |field| try writer.write(field.name);
        try writer.endArray();
        try writer.objectField("additionalProperties");
        try writer.write(false);
        try writer.endObject();
    }
};

fn isName(name: []const u8) bool {
    if (utf8.trimmed(name).len == 0 or utf8.characters(name) > longest_name) return false;
    for (name) |byte| if (std.ascii.isControl(byte) or byte == '"' or byte == '\\') return false;
    return true;
}

// What is answered

/// The values, in the order in which their fields were asked for, as the model wrote them.
const Values = struct {
    fields: []const Field,
    values: []const Json,

    pub fn jsonStringify(self: Values, writer: anytype) !void {
        try writer.beginObject();
        for (self.fields, self.values) |field, value| {
            try writer.objectField(field.name);
            try writer.write(value);
        }
        try writer.endObject();
    }
};

fn readReply(reply: []const u8, fields: []const Field) union(enum) { values: Values, problem: []const u8 } {
    const members = switch (outermostObject(reply)) {
        .members => |members| members,
        .problem => |problem| return .{ .problem = problem },
    };
    const values = cuttlefish.stepAllocator().alloc(Json, fields.len) catch @trap();
    for (fields, values) |field, *value| {
        value.* = members.find(field.name) orelse return .{ .problem = cuttlefish.format("the key \"{s}\" is missing", .{field.name}) };
        if (typeProblem(value.*, field.type)) |problem| return .{ .problem = cuttlefish.format("\"{s}\" {s}", .{ field.name, problem }) };
    }
    // No key stands twice, so one more than the fields is one that is none of them.
    if (members.all.len > fields.len) for (members.all) |member| {
        if (!isAskedFor(member.name, fields)) return .{ .problem = cuttlefish.format(
            "the key \"{s}\" was not asked for",
            .{utf8.quotable(member.name, longest_name)},
        ) };
    };
    return .{ .values = .{ .fields = fields, .values = values } };
}

fn isAskedFor(name: []const u8, fields: []const Field) bool {
    for (fields) |field| if (std.mem.eql(u8, field.name, name)) return true;
    return false;
}

fn typeProblem(value: Json, wanted: Type) ?[]const u8 {
    const form = value.form();
    if (form == .null) return null;
    const fits = switch (wanted) {
        .text => form == .text,
        .number => form == .number,
        .bool => form == .bool,
    };
    if (!fits) return cuttlefish.format("must be {s}, and is {s}", .{
        switch (wanted) {
            .text => "a text in quotes or null",
            .number => "a number without quotes or null",
            .bool => "true, false or null",
        },
        switch (form) {
            .text => "a text",
            .number => "a number",
            .bool => "true or false",
            .null => unreachable,
            .list => "a list",
            .object => "an object",
        },
    });
    return if (form == .number and !isPlainNumber(value.source)) "is a number too long or too large" else null;
}

fn isPlainNumber(digits: []const u8) bool {
    if (digits.len > longest_number) return false;
    const exponent = std.mem.findAny(u8, digits, "eE") orelse return true;
    return std.mem.trimStart(u8, digits[exponent + 1 ..], "+-").len <= most_exponent_digits;
}

/// The first object in a reply that can be read, whatever stands around it: models like to explain,
/// and to put code fences.
fn outermostObject(reply: []const u8) union(enum) { members: Members, problem: []const u8 } {
    var from: usize = 0;
    var problem: []const u8 = "there is no JSON object in it";
    while (std.mem.findScalarPos(u8, reply, from, '{')) |start| {
        const end = objectEnd(reply, start) orelse return .{ .problem = "the JSON object in it has no end" };
        const object: Json = .{ .source = reply[start..end] };
        if (object.read(Members)) |members| return .{ .members = members };
        problem = "the object in it is not valid JSON, or a key stands in it twice";
        from = end;
    }
    return .{ .problem = problem };
}

/// Where the object ends that begins at `start`, going by brackets and quotes.
fn objectEnd(reply: []const u8, start: usize) ?usize {
    var depth: usize = 0;
    var in_string = false;
    var at = start;
    while (at < reply.len) : (at += 1) switch (reply[at]) {
        '\\' => at += @intFromBool(in_string),
        '"' => in_string = !in_string,
        '{' => depth += @intFromBool(!in_string),
        '}' => if (!in_string) {
            depth -= 1;
            if (depth == 0) return at + 1;
        },
        else => {},
    };
    return null;
}

fn copied(bytes: []const u8) []const u8 {
    return cuttlefish.runAllocator().dupe(u8, bytes) catch @trap();
}

comptime {
    cuttlefish.exportBlock(Extract);
}
