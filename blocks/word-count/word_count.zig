//! Counts the lines, words and characters of a text, window by window.

const cuttlefish = @import("cuttlefish");

const window_bytes = 64 * 1024;

/// Progress costs a round trip through whoever watches, which takes longer than a window does.
const windows_between_reports = 64;

const WordCount = struct {
    path: []const u8 = "",
    handle: u32 = 0,
    len: u64 = 0,
    offset: u64 = 0,
    windows: u64 = 0,

    lines: u64 = 0,
    words: u64 = 0,
    chars: u64 = 0,
    /// A word may go on in the next window.
    inside_word: bool = false,

    pub const signature: cuttlefish.Signature = .{
        .input = "{path: text}",
        .output = "{path: text, lines: number, words: number, chars: number}",
    };
    pub const Input = struct { path: cuttlefish.Text };

    pub fn init(self: *WordCount, input: Input) cuttlefish.Command {
        self.path = input.path.bytes;
        return cuttlefish.open(self.path);
    }

    pub fn step(self: *WordCount, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .opened => |opened| self.begin(opened),
            .sliced => |window| self.read(window),
            .emitted => self.next(),
            else => cuttlefish.unexpected(event),
        };
    }

    fn begin(self: *WordCount, opened: cuttlefish.Opened) cuttlefish.Command {
        self.handle = opened.handle;
        self.len = opened.len;
        return switch (opened.kind) {
            .text => self.next(),
            .image => self.refuse("an image", "Describe it with the block \"summarize\" instead."),
            .document => self.refuse("a document", "Extract its text into a file first, or use the block \"summarize\"."),
            .binary => self.refuse("binary", "Convert it to text in UTF-8 first."),
        };
    }

    fn refuse(self: *WordCount, kind: []const u8, advice: []const u8) cuttlefish.Command {
        return cuttlefish.fail("unsupported_kind", cuttlefish.format(
            "\"{s}\" is {s}, and word-count reads only text. {s}",
            .{ self.path, kind, advice },
        ));
    }

    fn next(self: *WordCount) cuttlefish.Command {
        if (self.offset == self.len) return cuttlefish.done(.{
            .path = self.path,
            .lines = self.lines,
            .words = self.words,
            .chars = self.chars,
        });
        return cuttlefish.slice(self.handle, self.offset, window_bytes);
    }

    fn read(self: *WordCount, window: cuttlefish.Window) cuttlefish.Command {
        if (!window.advances(self.offset, self.len)) return cuttlefish.stuck(window, self.offset, self.len);
        self.count(window.bytes);
        self.offset = window.next_offset;
        self.windows += 1;
        if (self.windows % windows_between_reports == 0) return cuttlefish.emit(.{
            .stage = "reading",
            .done = self.offset,
            .of = self.len,
        });
        return self.next();
    }

    fn count(self: *WordCount, text: []const u8) void {
        for (text) |byte| {
            if (byte == '\n') self.lines += 1;
            if (cuttlefish.utf8.startsCharacter(byte)) self.chars += 1;
            const inside_word = !isWhiteSpace(byte);
            if (inside_word and !self.inside_word) self.words += 1;
            self.inside_word = inside_word;
        }
    }
};

/// What Python's `bytes.split()` splits at: space, and tab to carriage return.
fn isWhiteSpace(byte: u8) bool {
    return byte == ' ' or (byte >= '\t' and byte <= '\r');
}

comptime {
    cuttlefish.exportBlock(WordCount);
}
