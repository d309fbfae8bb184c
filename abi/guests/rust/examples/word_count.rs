//! Counts the lines, words and characters of a text, window by window.

use cuttlefish_block::{advances, export_block, stuck, unexpected, Block, Command, Event, Kind};
use serde::Deserialize;
use serde_json::json;

const WINDOW_BYTES: u64 = 64 * 1024;

/// Progress costs a round trip through whoever watches, which takes longer than a window does.
const WINDOWS_BETWEEN_REPORTS: u64 = 64;

#[derive(Deserialize)]
struct Input {
    path: String,
}

#[derive(Default)]
struct WordCount {
    path: String,
    handle: u32,
    len: u64,
    offset: u64,
    windows: u64,
    lines: u64,
    words: u64,
    chars: u64,
    /// A word may go on in the next window.
    inside_word: bool,
}

impl Block for WordCount {
    const INPUT: &'static str = "{path: text}";
    const OUTPUT: &'static str = "{path: text, lines: number, words: number, chars: number}";
    type Input = Input;

    fn start(input: Input) -> (Self, Command) {
        let command = Command::open(&input.path);
        (WordCount { path: input.path, ..WordCount::default() }, command)
    }

    fn step(&mut self, event: Event) -> Command {
        match event {
            Event::Opened { handle, len, kind } => {
                self.handle = handle;
                self.len = len;
                match kind {
                    Kind::Text => self.next(),
                    Kind::Image { .. } => self.refuse("an image", "Describe it with the block \"summarize\" instead."),
                    Kind::Document { .. } => {
                        self.refuse("a document", "Extract its text into a file first, or use the block \"summarize\".")
                    }
                    Kind::Binary => self.refuse("binary", "Convert it to text in UTF-8 first."),
                }
            }
            Event::Sliced { text, next_offset } => {
                if !advances(next_offset, self.offset, self.len) {
                    return stuck(next_offset, self.offset, self.len);
                }
                self.count(&text);
                self.offset = next_offset;
                self.windows += 1;
                if self.windows % WINDOWS_BETWEEN_REPORTS == 0 {
                    return Command::emit(json!({"stage": "reading", "done": self.offset, "of": self.len}));
                }
                self.next()
            }
            Event::Emitted => self.next(),
            other => unexpected(&other),
        }
    }
}

impl WordCount {
    fn next(&self) -> Command {
        if self.offset < self.len {
            return Command::slice(self.handle, self.offset, WINDOW_BYTES);
        }
        Command::done(json!({"path": self.path, "lines": self.lines, "words": self.words, "chars": self.chars}))
    }

    fn refuse(&self, kind: &str, advice: &str) -> Command {
        let message = format!("\"{}\" is {kind}, and word-count reads only text. {advice}", self.path);
        Command::fail("unsupported_kind", message)
    }

    fn count(&mut self, text: &str) {
        for byte in text.bytes() {
            let is_space = byte == b' ' || (b'\t'..=b'\r').contains(&byte); // what Python's bytes.split() splits at
            self.lines += u64::from(byte == b'\n');
            self.chars += u64::from(byte & 0xC0 != 0x80);
            self.words += u64::from(!is_space && !self.inside_word);
            self.inside_word = !is_space;
        }
    }
}

export_block!(WordCount);
