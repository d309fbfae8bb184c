//! Says in one sentence what a text is about, from how it starts.

use cuttlefish_block::{export_block, unexpected, Block, Command, Event, Kind};
use serde::Deserialize;
use serde_json::json;

const START_BYTES: u64 = 4096;
const MOST_TOKENS: u32 = 64;

#[derive(Deserialize)]
struct Input {
    path: String,
}

struct MyBlock {
    path: String,
}

impl Block for MyBlock {
    const INPUT: &'static str = "{path: text}";
    const OUTPUT: &'static str = "{path: text, about: text}";
    type Input = Input;

    fn start(input: Input) -> (Self, Command) {
        let command = Command::open(&input.path);
        (MyBlock { path: input.path }, command)
    }

    fn step(&mut self, event: Event) -> Command {
        match event {
            Event::Opened { handle, kind: Kind::Text, .. } => Command::slice(handle, 0, START_BYTES),
            Event::Opened { .. } => {
                Command::fail("unsupported_kind", format!("\"{}\" is no text; my-block reads text", self.path))
            }
            Event::Sliced { text, .. } => {
                Command::infer(format!("Say in one sentence what this is about:\n\n{text}"), MOST_TOKENS)
            }
            Event::InferDone { text, .. } => Command::done(json!({"path": self.path, "about": text})),
            other => unexpected(&other),
        }
    }
}

export_block!(MyBlock);
