//! Reads a file of any kind into pages of text.
//!
//! A page that cannot be read, or that is only a picture, costs that page and no other: it says why
//! in its `error`. All text is held until the end, because it is the result; so its size is capped.

const std = @import("std");
const cuttlefish = @import("cuttlefish");

const hasWords = cuttlefish.utf8.hasWords;
const trimmed = cuttlefish.utf8.trimmed;

const MiB = 1024 * 1024;

/// How long the pages may be as JSON: they are held and written in a fraction of a guest's memory
/// (256 MiB), and the next block of a pipeline can still take them.
const most_bytes = 16 * MiB;

/// What a page takes beside its text: names, number and brackets.
const page_bytes = 48;

const window_bytes = 64 * 1024;

/// Progress costs a round trip through whoever watches, which takes longer than a window or page does.
const windows_between_reports = 64;
const pages_between_reports = 16;

/// A dense page has some 700 words.
const picture_reply_tokens = 1536;

const byte_order_mark = "\u{FEFF}";

const picture_prompt =
    "Write down all text in this picture, word for word and in reading order, with its line breaks. " ++
    "Answer with that text only. If there is no text, answer with nothing.";

const Page = struct { page: u64, text: []const u8, @"error": []const u8 };

const ReadDocument = struct {
    path: []const u8 = "",
    handle: u32 = 0,
    kind: std.meta.Tag(cuttlefish.Kind) = .text,
    ocr: bool = false,
    /// What to read next and where to stop: bytes of a text, pages of a document, the one image.
    next: u64 = 0,
    end: u64 = 0,
    windows: u64 = 0,

    /// A text file's bytes so far; those of the page under way begin at `page_start`.
    gathered: std.ArrayList(u8) = .empty,
    page_start: usize = 0,

    pages: std.ArrayList(Page) = .empty,
    size: u64 = 0,

    pub const signature: cuttlefish.Signature = .{
        .input = "{path: text}",
        .output = "{path: text, kind: text, pages: [{page: number, text: text, error: text}]}",
    };
    pub const options = "ocr, which is true or false";
    pub const Input = struct { path: cuttlefish.Text, ocr: bool = false };

    pub fn init(self: *ReadDocument, input: Input) cuttlefish.Command {
        self.path = input.path.bytes;
        self.ocr = input.ocr;
        return cuttlefish.open(self.path);
    }

    pub fn step(self: *ReadDocument, event: cuttlefish.Event) cuttlefish.Command {
        return switch (event) {
            .opened => |opened| self.begin(opened),
            .emitted => self.advance(),
            .sliced => |window| self.readWindow(window),
            .page_text_attempted => |attempt| switch (attempt) {
                .text => |text| self.readPage(text),
                .reason => |reason| self.add("", reason),
            },
            .page_texted => |page| self.lookAtPage(page),
            .page_imaged => |picture| self.ask(picture.handle),
            .infer_done => |reply| self.readReply(reply),
            else => cuttlefish.unexpected(event),
        };
    }

    fn begin(self: *ReadDocument, opened: cuttlefish.Opened) cuttlefish.Command {
        self.handle = opened.handle;
        self.kind = opened.kind;
        switch (opened.kind) {
            .text => {
                if (opened.len > most_bytes) return self.tooLarge();
                self.end = opened.len;
                self.gathered.ensureTotalCapacityPrecise(cuttlefish.runAllocator(), @intCast(opened.len)) catch @trap();
            },
            .document => |document| self.end = document.pages,
            .image => self.end = 1,
            .binary => return cuttlefish.fail("unsupported_kind", cuttlefish.format(
                "\"{s}\" is neither a text in UTF-8 nor a PDF nor an image. Convert it to one of these first.",
                .{self.path},
            )),
        }
        return self.report();
    }

    fn report(self: *ReadDocument) cuttlefish.Command {
        return cuttlefish.emit(.{ .stage = "reading", .done = self.next, .of = self.end });
    }

    fn advance(self: *ReadDocument) cuttlefish.Command {
        if (self.next == self.end) return self.finish();
        return switch (self.kind) {
            .text => cuttlefish.slice(self.handle, self.next, window_bytes),
            .document => cuttlefish.pageTextOpt(self.handle, @intCast(self.next)),
            .image => if (self.ocr) self.ask(self.handle) else self.add(
                "",
                "no_text: an image holds no text that can be read without a model; set \"ocr\": true and name a model that reads images",
            ),
            .binary => unreachable,
        };
    }

    fn finish(self: *ReadDocument) cuttlefish.Command {
        if (self.kind == .text) {
            // What stands behind the last form feed is a page, unless it is nothing: a form feed may end a page too.
            const rest = self.gathered.items[self.page_start..];
            if (rest.len > 0 or self.pages.items.len == 0) self.keep(rest, "");
            if (self.size > most_bytes) return self.tooLarge();
        }
        return cuttlefish.done(.{ .path = self.path, .kind = self.kind, .pages = self.pages.items });
    }

    // A text file

    fn readWindow(self: *ReadDocument, window: cuttlefish.Window) cuttlefish.Command {
        if (!window.advances(self.next, self.end)) return cuttlefish.stuck(window, self.next, self.end);
        const text = if (self.next == 0 and std.mem.startsWith(u8, window.bytes, byte_order_mark))
            window.bytes[byte_order_mark.len..]
        else
            window.bytes;
        if (self.gathered.unusedCapacitySlice().len < text.len) return cuttlefish.stuck(window, self.next, self.end);
        self.next = window.next_offset;
        self.windows += 1;
        for (text) |byte| {
            self.gathered.appendAssumeCapacity(byte);
            if (byte != '\x0C') continue;
            const end = self.gathered.items.len - 1;
            self.keep(self.gathered.items[self.page_start..end], "");
            self.page_start = end + 1;
            if (self.size > most_bytes) return self.tooLarge();
        }
        if (self.windows % windows_between_reports == 0) return self.report();
        return self.advance();
    }

    // A document

    fn readPage(self: *ReadDocument, text: []const u8) cuttlefish.Command {
        if (hasWords(text)) return self.add(text, "");
        // Blank or a scan? The answer to this command tells how many images lie on the page.
        return cuttlefish.pageText(self.handle, @intCast(self.next));
    }

    fn lookAtPage(self: *ReadDocument, page: cuttlefish.PageText) cuttlefish.Command {
        const riddles = hasRiddles(page.text);
        if (page.images == 0 and !riddles) return self.add(page.text, "");
        if (self.ocr) return cuttlefish.pageImage(self.handle, @intCast(self.next));
        const advice = "set \"ocr\": true and name a model that reads images";
        if (riddles) return self.add("", "no_text: the fonts of the page do not say which letters they show; to read it, " ++ advice);
        const images = page.images orelse return self.add(
            "",
            "no_text: the page has no text, and this host does not tell whether it is blank or a picture; if it is one, " ++ advice,
        );
        return self.add("", cuttlefish.format(
            "no_text: the page has no text and {d} image{s}: it is probably a scan; to read it, {s}",
            .{ images, if (images == 1) "" else "s", advice },
        ));
    }

    // Pictures

    fn ask(_: *ReadDocument, picture: u32) cuttlefish.Command {
        return cuttlefish.infer(.{ .prompt = picture_prompt, .max_tokens = picture_reply_tokens, .images = &.{picture} });
    }

    fn readReply(self: *ReadDocument, reply: cuttlefish.Reply) cuttlefish.Command {
        if (!hasWords(reply.text)) return self.add("", "no_text: the model found no text in the picture");
        if (reply.isCut(picture_reply_tokens)) return self.add(trimmed(reply.text), std.fmt.comptimePrint(
            "cut_off: the model's reply reached {d} tokens, so the end of the text may be missing",
            .{picture_reply_tokens},
        ));
        return self.add(trimmed(reply.text), "");
    }

    // Pages

    /// Keeps what the page at `next` gave, and goes on.
    fn add(self: *ReadDocument, text: []const u8, problem: []const u8) cuttlefish.Command {
        if (self.size + text.len > most_bytes) return self.tooLarge(); // before it is copied
        self.keep(copied(text), copied(problem));
        if (self.size > most_bytes) return self.tooLarge();
        self.next += 1;
        if (self.ocr or self.next % pages_between_reports == 0) return self.report();
        return self.advance();
    }

    fn keep(self: *ReadDocument, text: []const u8, problem: []const u8) void {
        self.size += cuttlefish.utf8.jsonBytes(text) + cuttlefish.utf8.jsonBytes(problem) + page_bytes;
        self.pages.append(cuttlefish.runAllocator(), .{
            .page = self.pages.items.len,
            .text = text,
            .@"error" = problem,
        }) catch @trap();
    }

    fn tooLarge(self: *ReadDocument) cuttlefish.Command {
        return cuttlefish.fail("too_large", cuttlefish.format(
            "the pages of \"{s}\" take more than {d} MiB. Split the file, or give it to a block that reads it piece by piece, such as \"summarize\".",
            .{ self.path, most_bytes / MiB },
        ));
    }
};

/// Whether a text holds what PDFium gives for glyphs that no letter is known for.
fn hasRiddles(text: []const u8) bool {
    var characters = std.unicode.Utf8View.initUnchecked(text).iterator();
    while (characters.nextCodepoint()) |character| switch (character) {
        0xE000...0xF8FF, 0xFFFD => return true,
        else => {},
    };
    return false;
}

fn copied(bytes: []const u8) []const u8 {
    return cuttlefish.runAllocator().dupe(u8, bytes) catch @trap();
}

comptime {
    cuttlefish.exportBlock(ReadDocument);
}
