//! Uses the whole of cuttlefish-block; abi/guests/CONFORMANCE.md says what it must do.

use cuttlefish_block::{export_block, Block, Command, Event, ImageOp, InferOptions, Inference, Json, Kind, Verdict};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Input {
    requests: Vec<Json>,
    stop_at: String,
    rounds: u64,
}

struct Conformance {
    input: Input,
    at: usize,
    seen: Vec<Json>,
    tokens: Vec<String>,
}

impl Block for Conformance {
    const INPUT: &'static str = "{requests: [json], stop_at: text, rounds: number}";
    const OUTPUT: &'static str = "json";
    type Input = Input;

    fn start(input: Input) -> (Self, Command) {
        let mut block = Conformance { input, at: 0, seen: Vec::new(), tokens: Vec::new() };
        let command = match block.input.rounds {
            0 => Command::fail("bad_input", format!("the input is not {}", Self::INPUT)),
            _ => block.next(),
        };
        (block, command)
    }

    fn step(&mut self, event: Event) -> Command {
        self.seen.push(describe(&event));
        self.next()
    }

    fn on_token(&mut self, piece: &str) -> Verdict {
        self.tokens.push(piece.to_owned());
        if piece == self.input.stop_at { Verdict::Stop } else { Verdict::GoOn }
    }
}

impl Conformance {
    fn next(&mut self) -> Command {
        if self.at == self.input.requests.len() {
            self.input.rounds -= 1;
            if self.at == 0 || self.input.rounds == 0 {
                return Command::done(json!({"seen": self.seen, "tokens": self.tokens}));
            }
            self.at = 0;
            self.seen.clear();
            self.tokens.clear();
        }
        self.at += 1;
        issue(&self.input.requests[self.at - 1]).unwrap_or_else(|| Command::fail("bad_input", "a request is no command"))
    }
}

fn issue(request: &Json) -> Option<Command> {
    let text = |name: &str| request.get(name)?.as_str();
    let (handle, page) = (u32_of(request, "handle"), u32_of(request, "page"));
    let (offset, len) = (u64_of(request, "offset"), u64_of(request, "len"));
    Some(match text("cmd")? {
        "infer" => Command::Infer(Inference {
            prompt: text("prompt")?.to_owned(),
            max_tokens: u32_of(request, "max_tokens")?,
            images: match request.get("images") {
                Some(images) => images.as_array()?.iter().map(as_u32).collect::<Option<_>>()?,
                None => Vec::new(),
            },
            options: match request.get("options") {
                Some(options) => InferOptions {
                    temperature: options.get("temperature").and_then(Json::as_f64),
                    seed: u32_of(options, "seed"),
                    stop: options.get("stop").map_or(Some(Vec::new()), texts)?,
                    schema: options.get("schema").cloned(),
                },
                None => InferOptions::default(),
            },
        }),
        "embed" => Command::embed(texts(request.get("texts")?)?),
        "open" => Command::open(text("path")?),
        "slice" => Command::slice(handle?, offset?, len?),
        "slice_bytes" => Command::slice_bytes(handle?, offset?, len?),
        "page_text" => Command::page_text(handle?, page?),
        "page_text_opt" => Command::page_text_opt(handle?, page?),
        "document_text" => Command::document_text(handle?),
        "page_image" => Command::page_image(handle?, page?),
        "image_op" => {
            let op = request.get("op")?;
            let side = |name: &str| u32_of(op, name);
            let op = match op.get("op")?.as_str()? {
                "resize" => ImageOp::Resize { max_width: side("max_width")?, max_height: side("max_height")? },
                "crop" => ImageOp::Crop { x: side("x")?, y: side("y")?, width: side("width")?, height: side("height")? },
                "frame" => ImageOp::Frame { index: side("index")? },
                _ => return None,
            };
            Command::ImageOp { handle: handle?, op }
        }
        "emit" => Command::emit(request.get("progress")?),
        "done" => Command::done(request.get("result")?),
        "fail" => Command::fail(text("code")?, text("message")?),
        _ => return None,
    })
}

fn as_u32(value: &Json) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn u32_of(object: &Json, name: &str) -> Option<u32> {
    as_u32(object.get(name)?)
}

fn u64_of(object: &Json, name: &str) -> Option<u64> {
    object.get(name)?.as_u64()
}

fn texts(list: &Json) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

fn describe(event: &Event) -> Json {
    let event_name = event.name();
    match event {
        Event::InferDone { text, tokens_out, finish_reason } => {
            json!({"event": event_name, "text": text, "tokens_out": tokens_out, "finish_reason": finish_reason})
        }
        Event::Embedded { vectors } => json!({"event": event_name, "vectors": vectors}),
        Event::Opened { handle, len, kind } => {
            let kind = match kind {
                Kind::Text => json!({"kind": "text"}),
                Kind::Image { format } => json!({"kind": "image", "format": format}),
                Kind::Document { pages, has_text_layer } => {
                    json!({"kind": "document", "pages": pages, "has_text_layer": has_text_layer})
                }
                Kind::Binary => json!({"kind": "binary"}),
            };
            json!({"event": event_name, "handle": handle, "len": len, "kind": kind})
        }
        Event::Sliced { text, next_offset } => json!({"event": event_name, "text": text, "next_offset": next_offset}),
        Event::SlicedBytes { bytes, next_offset } => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"event": event_name, "hex": hex, "next_offset": next_offset})
        }
        Event::PageTexted { text, images, coverage } => {
            json!({"event": event_name, "text": text, "images": images, "coverage": coverage})
        }
        Event::PageTextAttempted(Ok(text)) => json!({"event": event_name, "text": text, "error": null}),
        Event::PageTextAttempted(Err(reason)) => json!({"event": event_name, "text": null, "error": reason}),
        Event::PageImaged { handle, len, format, frames } => {
            json!({"event": event_name, "handle": handle, "len": len, "format": format, "frames": frames})
        }
        Event::Emitted => json!({"event": event_name}),
    }
}

export_block!(Conformance, on_token);
