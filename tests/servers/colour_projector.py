"""An image reader for SmolLM2 that tells plain colours: `python colour_projector.py MODEL.gguf OUT.gguf`. A test fixture.

It is no trained model. Its weights are written by hand so that an image goes through the engine's whole way for images (decode,
resize, patches, vision graph, projector, the language model) and something can be said about what comes out. The engine's
`janus_pro` projector is used, because it needs no words of its own in the vocabulary:

- an image of one 16x16 patch becomes one vector, whose first three numbers are the means of red, green and blue;
- one transformer block that adds nothing;
- a hidden layer with one detector for each corner of the colour cube;
- each detector adds the language model's own vector of the colour's word.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

CORNERS = {
    "black": (-1, -1, -1),
    "white": (1, 1, 1),
    "red": (1, -1, -1),
    "green": (-1, 1, -1),
    "blue": (-1, -1, 1),
    "yellow": (1, 1, -1),
    "pink": (1, -1, 1),
}
PATCH = 16
WIDTH = 32  # of the vision model
INNER = 48  # of its feed-forward part
DETECTORS = 16
GAIN = 20.0  # makes a detector answer clearly or not at all


def write_projector(model: Path, out: Path) -> None:
    """Write the projector that belongs to a SmolLM2 file."""
    vectors = word_vectors(model, list(CORNERS))
    width_out = len(next(iter(vectors.values())))
    writer = gguf.GGUFWriter(str(out), "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "janus_pro")
    writer.add_bool("clip.use_gelu", True)
    facts = {
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "block_count": 1,
        "projection_dim": width_out,
        "image_size": PATCH,
        "patch_size": PATCH,
        "attention.head_count": 2,
    }
    for name, value in facts.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    for name, tensor in {**eye(), **idle_block(), **detectors(vectors, width_out)}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def word_vectors(model: Path, words: list[str]) -> dict[str, np.ndarray]:
    """The language model's own vectors of words that are one token."""
    reader = gguf.GGUFReader(str(model))
    table = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    field = reader.fields["tokenizer.ggml.tokens"]
    rows = {bytes(field.parts[part]).decode(): row for row, part in enumerate(field.data)}
    found = {}
    for word in words:
        row = rows["Ġ" + word]  # the tokenizer's sign for a space before the word
        found[word] = gguf.quants.dequantize(table.data[row : row + 1], table.tensor_type)[0].astype(np.float32)
    return found


def eye() -> dict[str, np.ndarray]:
    """The patch layer. Each mean stands there with both signs, so that layer norm leaves its sign alone; a constant keeps the
    vector from being zero.
    """
    weight, bias = zeros(WIDTH, 3, PATCH, PATCH), zeros(WIDTH)
    for channel in range(3):
        weight[channel, channel] = 1 / PATCH**2
        weight[3 + channel, channel] = -1 / PATCH**2
    bias[6], bias[7] = 1, -1
    return {"v.patch_embd.weight": weight, "v.patch_embd.bias": bias, "v.position_embd.weight": zeros(1, WIDTH)}


def idle_block() -> dict[str, np.ndarray]:
    """A transformer block that adds nothing to what goes through it."""
    tensors = {}
    for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors[f"v.blk.0.{part}.weight"], tensors[f"v.blk.0.{part}.bias"] = zeros(WIDTH, WIDTH), zeros(WIDTH)
    tensors["v.blk.0.ffn_up.weight"], tensors["v.blk.0.ffn_up.bias"] = zeros(INNER, WIDTH), zeros(INNER)
    tensors["v.blk.0.ffn_down.weight"], tensors["v.blk.0.ffn_down.bias"] = zeros(WIDTH, INNER), zeros(WIDTH)
    for norm in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        tensors[f"{norm}.weight"], tensors[f"{norm}.bias"] = np.ones(WIDTH, np.float32), zeros(WIDTH)
    return tensors


def detectors(vectors: dict[str, np.ndarray], width_out: int) -> dict[str, np.ndarray]:
    """The projector: for the colour whose three signs all fit, its word; for the others, nothing."""
    look, threshold, speak = zeros(DETECTORS, WIDTH), zeros(DETECTORS), zeros(width_out, DETECTORS)
    after_norm = np.sqrt(8 / WIDTH)  # eight numbers of size one among WIDTH
    for number, (colour, corner) in enumerate(CORNERS.items()):
        look[number, :3] = np.array(corner) * after_norm * GAIN
        threshold[number] = -2 * GAIN
        speak[:, number] = vectors[colour] / GAIN
    return {"mm.0.weight": look, "mm.0.bias": threshold, "mm.1.weight": speak, "mm.1.bias": zeros(width_out)}


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


if __name__ == "__main__":
    write_projector(Path(sys.argv[1]), Path(sys.argv[2]))
