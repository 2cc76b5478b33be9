"""Types that llama.cpp's quantizer makes: their formats, and how far logits move."""

from pathlib import Path

import gguf
import pytest
import torch
from gguf_families import make
from transformers import AutoModelForCausalLM

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (the extra llama)", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

from training.results.gguf.convert import write  # noqa: E402
from training.results.gguf.llama import LlamaModel  # noqa: E402
from training.run_folder.derived import GgufType  # noqa: E402

TOKENS = torch.randint(10, 300, (64,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3", tmp_path_factory.mktemp("quantized") / "model", torch.bfloat16)


def test_fewer_bits_make_a_smaller_file_that_is_further_from_the_model(model: Path, tmp_path: Path) -> None:
    with torch.inference_mode():
        loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
        expected = loaded(torch.tensor([TOKENS])).logits[0]
    bytes_of, errors = {}, {}
    for kind in GgufType:
        file = tmp_path / kind.file
        assert write(model, file, kind) == []
        with LlamaModel(file, threads=1) as quantized:
            errors[kind] = float((quantized.logits(TOKENS) - expected).pow(2).mean().sqrt() / expected.std())
        bytes_of[kind] = file.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kind.file for kind in GgufType)
    order = [GgufType.Q8_0, GgufType.Q6_K, GgufType.Q5_K_M, GgufType.Q4_K_M, GgufType.Q3_K_M]
    for less, more in zip(order[1:], order, strict=False):
        assert bytes_of[less] < bytes_of[more]
        assert errors[less] > errors[more]
    assert bytes_of[GgufType.Q8_0] < bytes_of[GgufType.TRAINED]
    assert errors[GgufType.TRAINED] < errors[GgufType.Q8_0] < 0.05
    assert errors[GgufType.Q4_K_M] < 0.35


def test_the_file_says_its_type(model: Path, tmp_path: Path) -> None:
    write(model, tmp_path / "model.gguf", GgufType.Q4_K_M)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_M
    kinds = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
    assert kinds["blk.0.ffn_up.weight"] is gguf.GGMLQuantizationType.Q4_K
    assert kinds["blk.0.attn_norm.weight"] is gguf.GGMLQuantizationType.F32


def test_q8_0_is_llama_cpp_s_own_bit_by_bit(model: Path, tmp_path: Path) -> None:
    import llama_cpp

    from training.results.gguf.convert import quantize

    write(model, tmp_path / "trained.gguf", GgufType.TRAINED)
    write(model, tmp_path / "ours.gguf", GgufType.Q8_0)
    quantize(llama_cpp, tmp_path / "trained.gguf", tmp_path / "theirs.gguf", GgufType.Q8_0)
    ours, theirs = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / name).tensors}
        for name in ("ours.gguf", "theirs.gguf")
    )
    assert ours.keys() == theirs.keys()
    assert all(ours[name].data.tobytes() == theirs[name].data.tobytes() for name in ours)
