//! Says in one sentence what a text is about, from how it starts.

const cuttlefish = @import("cuttlefish");

const start_bytes = 4096;
const most_tokens = 64;

const Block = struct {
    path: []const u8 = "",

    pub const signature: cuttlefish.Signature = .{ .input = "{path: text}", .output = "{path: text, about: text}" };
    pub const Input = struct { path: cuttlefish.Text };

    pub fn init(self: *Block, input: Input) cuttlefish.Command {
        self.path = input.path.bytes;
        return cuttlefish.open(self.path);
    }

    pub fn step(self: *Block, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .opened => |opened| if (opened.kind == .text)
                cuttlefish.slice(opened.handle, 0, start_bytes)
            else
                cuttlefish.fail("unsupported_kind", cuttlefish.format("\"{s}\" is no text; my-block reads text", .{self.path})),
            .sliced => |window| cuttlefish.infer(.{
                .prompt = cuttlefish.format("Say in one sentence what this is about:\n\n{s}", .{window.bytes}),
                .max_tokens = most_tokens,
            }),
            .infer_done => |reply| if (reply.isCut(most_tokens))
                cuttlefish.fail("cut_off", cuttlefish.format("the model needed more than {d} tokens for its sentence", .{most_tokens}))
            else
                cuttlefish.done(.{ .path = self.path, .about = reply.text }),
            else => cuttlefish.unexpected(event),
        };
    }
};

comptime {
    cuttlefish.exportBlock(Block);
}
