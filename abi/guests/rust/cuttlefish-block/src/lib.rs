//! Write a Cuttlefish block in Rust.
//!
//! A block answers its input, and then each event, with a command. The host carries the command out and answers with an event:
//!
//! ```
//! use cuttlefish_block::{export_block, unexpected, Block, Command, Event};
//! use serde::Deserialize;
//!
//! struct Greeter;
//!
//! #[derive(Deserialize)]
//! struct Input {
//!     name: String,
//! }
//!
//! impl Block for Greeter {
//!     const INPUT: &'static str = "{name: text}";
//!     const OUTPUT: &'static str = "text";
//!     type Input = Input;
//!
//!     fn start(input: Input) -> (Self, Command) {
//!         (Greeter, Command::infer(format!("Greet {} in one short sentence.", input.name), 32))
//!     }
//!
//!     fn step(&mut self, event: Event) -> Command {
//!         match event {
//!             Event::InferDone { text, .. } => Command::done(text),
//!             other => unexpected(&other),
//!         }
//!     }
//! }
//!
//! export_block!(Greeter);
//! ```
//!
//! Neither an unreadable input nor an event that does not answer the last command reaches the block; they end it with the codes
//! `bad_input` and `bad_event`. A panic ends the guest with a trap, and so does a lack of memory in the middle of a step.

#![warn(missing_docs)]

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
pub use serde_json::Value as Json;

/// A block: its state, and how it answers.
pub trait Block: Sized {
    /// The type of the input, in the type language of the contract: `{path: text}`.
    const INPUT: &'static str;
    /// The type of the result.
    const OUTPUT: &'static str;
    /// What the input is read into. A field that may be left out is an `Option`, or has `#[serde(default)]`.
    type Input: DeserializeOwned;

    /// Begins a run: the state, and the first command.
    fn start(input: Self::Input) -> (Self, Command);

    /// Answers an event, which always answers the last command.
    fn step(&mut self, event: Event) -> Command;

    /// Sees a piece of the model's reply, while `infer` is carried out. Only for a block that is exported with `on_token`.
    fn on_token(&mut self, _piece: &str) -> Verdict {
        Verdict::GoOn
    }
}

/// What `on_token` thinks of the reply so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The model goes on.
    GoOn,
    /// The model stops; a piece or two may still come.
    Stop,
}

/// What a block asks of the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Asks the model. Answered by `InferDone`.
    Infer(Inference),
    /// Turns texts into vectors. Answered by `Embedded`.
    Embed {
        /// One vector comes back for each.
        texts: Vec<String>,
    },
    /// Opens a file. Answered by `Opened`.
    Open {
        /// As the one who starts the job would write it.
        path: String,
    },
    /// Asks for the whole characters within `len` bytes of a text. Answered by `Sliced`.
    Slice {
        /// A text.
        handle: u32,
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Asks for bytes of anything that is open. Answered by `SlicedBytes`.
    SliceBytes {
        /// Any.
        handle: u32,
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Asks for the text of a page. Answered by `PageTexted`.
    PageText {
        /// A document.
        handle: u32,
        /// Counted from zero.
        page: u32,
    },
    /// Asks for the text of a page, or the reason why there is none: `PageText` would end the job. Answered by `PageTextAttempted`.
    PageTextOpt {
        /// A document.
        handle: u32,
        /// Counted from zero.
        page: u32,
    },
    /// Asks for the text of all pages in one. Answered by `PageTexted`.
    DocumentText {
        /// A document.
        handle: u32,
    },
    /// Asks for a picture of a page. Answered by `PageImaged`.
    PageImage {
        /// A document.
        handle: u32,
        /// Counted from zero.
        page: u32,
    },
    /// Asks for a changed copy of an image. Answered by `PageImaged`.
    ImageOp {
        /// An image.
        handle: u32,
        /// What to make of it.
        op: ImageOp,
    },
    /// Shows progress to whoever watches. Answered by `Emitted`.
    Emit {
        /// Any JSON.
        progress: Json,
    },
    /// Ends the block with its result.
    Done {
        /// JSON of the type that the block promises.
        result: Json,
    },
    /// Ends the block without a result.
    Fail {
        /// For programs, in `snake_case`: keep it stable.
        code: String,
        /// For people: what happened, and what to do.
        message: String,
    },
}

/// A prompt. `Inference { prompt, max_tokens, ..Default::default() }` leaves out what is not needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inference {
    /// What the model reads.
    pub prompt: String,
    /// The longest reply.
    pub max_tokens: u32,
    /// Handles of images, in the order in which the model sees them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<u32>,
    /// How the model chooses its words.
    #[serde(skip_serializing_if = "InferOptions::is_default")]
    pub options: InferOptions,
}

/// How the model chooses its words. What is `None` or empty is left to the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InferOptions {
    /// From 0, the likeliest token each time, to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Makes a choice above temperature 0 repeatable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// The reply ends before the first of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The reply is JSON that fits this JSON Schema, or the job fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Json>,
}

impl InferOptions {
    fn is_default(&self) -> bool {
        self == &Self::default()
    }
}

/// What can be made of an image.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ImageOp {
    /// A copy that fits into a box: proportions are kept, and nothing is enlarged.
    Resize {
        /// In pixels.
        max_width: u32,
        /// In pixels.
        max_height: u32,
    },
    /// A part, which must lie wholly inside.
    Crop {
        /// In pixels from the left.
        x: u32,
        /// In pixels from the top.
        y: u32,
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
    },
    /// One frame of an animation; all else sees the first.
    Frame {
        /// Counted from zero.
        index: u32,
    },
}

impl Command {
    /// Asks the model, with nothing but a prompt. See `Inference` for the rest.
    pub fn infer(prompt: impl Into<String>, max_tokens: u32) -> Self {
        Self::Infer(Inference { prompt: prompt.into(), max_tokens, ..Inference::default() })
    }

    /// Turns texts into vectors.
    pub fn embed<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::Embed { texts: texts.into_iter().map(Into::into).collect() }
    }

    /// Opens a file.
    pub fn open(path: impl Into<String>) -> Self {
        Self::Open { path: path.into() }
    }

    /// Asks for the whole characters within `len` bytes of a text.
    pub fn slice(handle: u32, offset: u64, len: u64) -> Self {
        Self::Slice { handle, offset, len }
    }

    /// Asks for bytes of anything that is open.
    pub fn slice_bytes(handle: u32, offset: u64, len: u64) -> Self {
        Self::SliceBytes { handle, offset, len }
    }

    /// Asks for the text of a page, counted from zero.
    pub fn page_text(handle: u32, page: u32) -> Self {
        Self::PageText { handle, page }
    }

    /// Asks for the text of a page, or the reason why there is none.
    pub fn page_text_opt(handle: u32, page: u32) -> Self {
        Self::PageTextOpt { handle, page }
    }

    /// Asks for the text of all pages in one.
    pub fn document_text(handle: u32) -> Self {
        Self::DocumentText { handle }
    }

    /// Asks for a picture of a page, counted from zero.
    pub fn page_image(handle: u32, page: u32) -> Self {
        Self::PageImage { handle, page }
    }

    /// Asks for a copy of an image that fits into a box.
    pub fn resize(handle: u32, max_width: u32, max_height: u32) -> Self {
        Self::ImageOp { handle, op: ImageOp::Resize { max_width, max_height } }
    }

    /// Asks for a part of an image.
    pub fn crop(handle: u32, x: u32, y: u32, width: u32, height: u32) -> Self {
        Self::ImageOp { handle, op: ImageOp::Crop { x, y, width, height } }
    }

    /// Asks for one frame of an animation, counted from zero.
    pub fn frame(handle: u32, index: u32) -> Self {
        Self::ImageOp { handle, op: ImageOp::Frame { index } }
    }

    /// Shows progress: anything that serde can write, such as `json!({"page": 3, "of": 12})`.
    pub fn emit(progress: impl Serialize) -> Self {
        match serde_json::to_value(progress) {
            Ok(progress) => Self::Emit { progress },
            Err(problem) => Self::fail("bad_result", format!("the progress cannot be written as JSON: {problem}")),
        }
    }

    /// Ends the block with its result: anything that serde can write. A fraction that is not finite becomes `null`.
    pub fn done(result: impl Serialize) -> Self {
        match serde_json::to_value(result) {
            Ok(result) => Self::Done { result },
            Err(problem) => Self::fail("bad_result", format!("the result cannot be written as JSON: {problem}")),
        }
    }

    /// Ends the block: `code` for programs, `message` for people.
    pub fn fail(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Fail { code: code.into(), message: message.into() }
    }

    /// Where its name and the event that answers it stand in `ANSWERS`.
    fn index(&self) -> usize {
        match self {
            Self::Infer(_) => 0,
            Self::Embed { .. } => 1,
            Self::Open { .. } => 2,
            Self::Slice { .. } => 3,
            Self::SliceBytes { .. } => 4,
            Self::PageText { .. } => 5,
            Self::PageTextOpt { .. } => 6,
            Self::DocumentText { .. } => 7,
            Self::PageImage { .. } => 8,
            Self::ImageOp { .. } => 9,
            Self::Emit { .. } => 10,
            Self::Done { .. } => 11,
            Self::Fail { .. } => 12,
        }
    }
}

const ANSWERS: [(&str, &str); 13] = [
    ("infer", "infer_done"),
    ("embed", "embedded"),
    ("open", "opened"),
    ("slice", "sliced"),
    ("slice_bytes", "sliced_bytes"),
    ("page_text", "page_texted"),
    ("page_text_opt", "page_text_attempted"),
    ("document_text", "page_texted"),
    ("page_image", "page_imaged"),
    ("image_op", "page_imaged"),
    ("emit", "emitted"),
    ("done", ""),
    ("fail", ""),
];

static LAST_COMMAND: AtomicUsize = AtomicUsize::new(12);

fn last_answers() -> (&'static str, &'static str) {
    ANSWERS[LAST_COMMAND.load(Ordering::Relaxed)]
}

/// What the host answers. Fields that a newer host adds are ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The model's whole reply.
    InferDone {
        /// All pieces that went to `on_token`, joined.
        text: String,
        /// How many tokens it has.
        tokens_out: u32,
        /// `stop`, `length` or `stopped_by_block`; `None` from an older host.
        finish_reason: Option<String>,
    },
    /// One vector for each text, in order.
    Embedded {
        /// All of one length.
        vectors: Vec<Vec<f64>>,
    },
    /// A file is open.
    Opened {
        /// Its number in this job.
        handle: u32,
        /// In bytes.
        len: u64,
        /// What it holds.
        kind: Kind,
    },
    /// A piece of a text.
    Sliced {
        /// Whole characters.
        text: String,
        /// Where to read on.
        next_offset: u64,
    },
    /// A piece of anything.
    SlicedBytes {
        /// Already decoded.
        bytes: Vec<u8>,
        /// Where to read on.
        next_offset: u64,
    },
    /// A page's text, or that of a whole document.
    PageTexted {
        /// Empty where the page has none.
        text: String,
        /// How many images lie on the page; `None` from an older host, or for a whole document.
        images: Option<u32>,
        /// Which part of the page they cover, from 0 to 1.
        coverage: Option<f64>,
    },
    /// A page's text, or the code and reason why there is none.
    PageTextAttempted(Result<String, String>),
    /// A new image.
    PageImaged {
        /// Its number in this job.
        handle: u32,
        /// In bytes.
        len: u64,
        /// `None` from an older host.
        format: Option<String>,
        /// How many the image has of which `ImageOp::Frame` took one; `None` after any other command.
        frames: Option<u32>,
    },
    /// The progress was passed on.
    Emitted,
}

/// What a file holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// UTF-8: read it with `slice`.
    Text,
    /// A picture: show it to a model.
    Image {
        /// Such as `png`.
        format: String,
    },
    /// Pages: read them with `page_text`, or `page_image` where a page has no text.
    Document {
        /// How many.
        pages: u32,
        /// Whether any page has text.
        has_text_layer: bool,
    },
    /// Anything else, and kinds that only a newer host knows: read it with `slice_bytes`.
    Binary,
}

impl Event {
    /// Its name in the contract.
    pub fn name(&self) -> &'static str {
        match self {
            Self::InferDone { .. } => "infer_done",
            Self::Embedded { .. } => "embedded",
            Self::Opened { .. } => "opened",
            Self::Sliced { .. } => "sliced",
            Self::SlicedBytes { .. } => "sliced_bytes",
            Self::PageTexted { .. } => "page_texted",
            Self::PageTextAttempted(_) => "page_text_attempted",
            Self::PageImaged { .. } => "page_imaged",
            Self::Emitted => "emitted",
        }
    }
}

/// Ends the block because an event makes no sense here. For the last arm of a block's `match`.
pub fn unexpected(event: &Event) -> Command {
    Command::fail("bad_event", format!("the host answered \"{}\" with \"{}\"", last_answers().0, event.name()))
}

/// Whether reading on at `next_offset` can reach the end. A block that follows offsets which stand still would ask for ever; it
/// answers with `stuck` instead.
pub fn advances(next_offset: u64, offset: u64, len: u64) -> bool {
    next_offset > offset && next_offset <= len
}

/// Ends the block because a window does not lead on from `offset`.
pub fn stuck(next_offset: u64, offset: u64, len: u64) -> Command {
    Command::fail(
        "bad_event",
        format!("the host answered a request at byte {offset} of {len} with next_offset {next_offset}, which leads nowhere"),
    )
}

/// Every field of every event: one flat record reads a message in one pass, whatever the order of its fields.
#[derive(Deserialize)]
struct WireEvent {
    event: String,
    text: Option<String>,
    tokens_out: Option<u32>,
    finish_reason: Option<String>,
    vectors: Option<Vec<Vec<f64>>>,
    handle: Option<u32>,
    len: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    kind: Option<WireKind>,
    next_offset: Option<u64>,
    bytes_base64: Option<String>,
    images: Option<u32>,
    coverage: Option<f64>,
    error: Option<String>,
    frames: Option<u32>,
}

#[derive(Deserialize)]
struct WireKind {
    kind: String,
    format: Option<String>,
    pages: Option<u32>,
    has_text_layer: Option<bool>,
}

/// A field that may be left out and may not be null.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(source: D) -> Result<Option<T>, D::Error> {
    T::deserialize(source).map(Some)
}

fn read_event(message: &[u8]) -> Option<Event> {
    let wire: WireEvent = read_record(message)?;
    Some(match wire.event.as_str() {
        "infer_done" => Event::InferDone { text: wire.text?, tokens_out: wire.tokens_out?, finish_reason: wire.finish_reason },
        "embedded" => Event::Embedded { vectors: wire.vectors? },
        "opened" => {
            Event::Opened { handle: wire.handle?, len: wire.len?, kind: wire.kind.map_or(Some(Kind::Text), read_kind)? }
        }
        "sliced" => Event::Sliced { text: wire.text?, next_offset: wire.next_offset? },
        "sliced_bytes" => {
            Event::SlicedBytes { bytes: decode_base64(wire.bytes_base64?.as_bytes())?, next_offset: wire.next_offset? }
        }
        "page_texted" => Event::PageTexted { text: wire.text?, images: wire.images, coverage: wire.coverage },
        "page_text_attempted" => Event::PageTextAttempted(match (wire.text, wire.error) {
            (Some(text), None) => Ok(text),
            (None, Some(reason)) => Err(reason),
            _ => return None,
        }),
        "page_imaged" => {
            let format = match wire.kind {
                Some(kind) => Some(kind.format?),
                None => None,
            };
            Event::PageImaged { handle: wire.handle?, len: wire.len?, format, frames: wire.frames }
        }
        "emitted" => Event::Emitted,
        _ => return None,
    })
}

fn read_kind(wire: WireKind) -> Option<Kind> {
    Some(match wire.kind.as_str() {
        "text" => Kind::Text,
        "image" => Kind::Image { format: wire.format? },
        "document" => Kind::Document { pages: wire.pages?, has_text_layer: wire.has_text_layer? },
        _ => Kind::Binary,
    })
}

/// Serde would also read a list of values as a record.
fn read_record<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    let first = message.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if *first == b'{' { serde_json::from_slice(message).ok() } else { None }
}

fn decode_base64(encoded: &[u8]) -> Option<Vec<u8>> {
    if encoded.len() % 4 != 0 {
        return None;
    }
    let padding = encoded.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let mut bytes = Vec::with_capacity(encoded.len() / 4 * 3);
    for (at, four) in encoded.chunks(4).enumerate() {
        let mut bits = 0;
        for (place, byte) in four.iter().enumerate() {
            let six = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if at * 4 + place >= encoded.len() - padding => 0,
                _ => return None,
            };
            bits = bits << 6 | u32::from(six);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - padding);
    Some(bytes)
}

/// What a descriptor of the contract is: an address and a length.
#[doc(hidden)]
#[repr(C)]
pub struct Descriptor {
    address: *const u8,
    len: usize,
}

/// A block's instance, as the exported functions use it.
#[doc(hidden)]
pub struct Runner<B: Block> {
    block: Option<B>,
    input: Vec<u8>,
    output: Vec<u8>,
    descriptor: Descriptor,
}

#[doc(hidden)]
impl<B: Block> Runner<B> {
    pub const fn new() -> Self {
        let descriptor = Descriptor { address: core::ptr::null(), len: 0 };
        Self { block: None, input: Vec::new(), output: Vec::new(), descriptor }
    }

    /// One buffer serves every message, because the host writes each straight before the call that reads it. Null if there is no memory.
    pub fn alloc(&mut self, len: usize) -> *mut u8 {
        self.input.clear();
        if self.input.try_reserve(len.max(4096)).is_err() {
            return core::ptr::null_mut();
        }
        self.input.as_mut_ptr()
    }

    /// # Safety
    /// The message lies where `alloc` said, or has no length.
    pub unsafe fn init(&mut self, address: *const u8, len: usize) -> *const Descriptor {
        self.block = None;
        let message = bytes_at(address, len);
        let input = if B::INPUT.trim_start().starts_with('{') {
            read_record(message)
        } else {
            serde_json::from_slice(message).ok()
        };
        let command = match input {
            Some(input) => {
                let (block, command) = B::start(input);
                self.block = Some(block);
                command
            }
            None => Command::fail("bad_input", format!("the input is not {}", B::INPUT)),
        };
        self.answer(&command)
    }

    /// # Safety
    /// As for `init`.
    pub unsafe fn step(&mut self, address: *const u8, len: usize) -> *const Descriptor {
        let (command, wanted) = last_answers();
        let command = match (read_event(bytes_at(address, len)), &mut self.block) {
            (Some(event), Some(block)) if event.name() == wanted => block.step(event),
            (Some(event), _) => unexpected(&event),
            (None, _) => Command::fail("bad_event", format!("the host answered \"{command}\" with an event that this block cannot read")),
        };
        self.answer(&command)
    }

    /// # Safety
    /// As for `init`.
    pub unsafe fn on_token(&mut self, address: *const u8, len: usize) -> i32 {
        let piece = String::from_utf8_lossy(bytes_at(address, len));
        match &mut self.block {
            Some(block) => i32::from(block.on_token(&piece) == Verdict::Stop),
            None => 0,
        }
    }

    pub fn signature(&mut self) -> *const Descriptor {
        #[derive(Serialize)]
        struct Signature {
            input: &'static str,
            output: &'static str,
        }
        self.write(&Signature { input: B::INPUT, output: B::OUTPUT })
    }

    fn answer(&mut self, command: &Command) -> *const Descriptor {
        LAST_COMMAND.store(command.index(), Ordering::Relaxed);
        self.write(command)
    }

    fn write(&mut self, value: &impl Serialize) -> *const Descriptor {
        self.output.clear();
        serde_json::to_writer(&mut self.output, value).expect("writing to memory does not fail");
        self.descriptor = Descriptor { address: self.output.as_ptr(), len: self.output.len() };
        &self.descriptor
    }
}

impl<B: Block> Default for Runner<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// A host may pass any address with length 0, even 0 itself, which no reference may hold.
unsafe fn bytes_at<'a>(address: *const u8, len: usize) -> &'a [u8] {
    if len == 0 { &[] } else { core::slice::from_raw_parts(address, len) }
}

/// Exports a block's functions. `export_block!(MyBlock)`, or `export_block!(MyBlock, on_token)` for a block that wants to see each piece
/// of the model's reply.
#[macro_export]
macro_rules! export_block {
    ($block:ty) => {
        // The module has one thread, and the host makes one call at a time.
        static mut CUTTLEFISH_RUNNER: $crate::Runner<$block> = $crate::Runner::new();

        #[no_mangle]
        pub extern "C" fn cf_alloc(len: usize) -> *mut u8 {
            unsafe { (*core::ptr::addr_of_mut!(CUTTLEFISH_RUNNER)).alloc(len) }
        }

        #[no_mangle]
        pub unsafe extern "C" fn cf_init(address: *const u8, len: usize) -> *const $crate::Descriptor {
            (*core::ptr::addr_of_mut!(CUTTLEFISH_RUNNER)).init(address, len)
        }

        #[no_mangle]
        pub unsafe extern "C" fn cf_step(address: *const u8, len: usize) -> *const $crate::Descriptor {
            (*core::ptr::addr_of_mut!(CUTTLEFISH_RUNNER)).step(address, len)
        }

        #[no_mangle]
        pub extern "C" fn cf_signature() -> *const $crate::Descriptor {
            unsafe { (*core::ptr::addr_of_mut!(CUTTLEFISH_RUNNER)).signature() }
        }
    };
    ($block:ty, on_token) => {
        $crate::export_block!($block);

        #[no_mangle]
        pub unsafe extern "C" fn cf_on_token(address: *const u8, len: usize) -> i32 {
            (*core::ptr::addr_of_mut!(CUTTLEFISH_RUNNER)).on_token(address, len)
        }
    };
}
