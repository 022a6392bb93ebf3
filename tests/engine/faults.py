"""What the tests of things that go wrong share: some work, and ways to spoil it."""

from nanovllm import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9, 10], [300, 301], [5]]
OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 40, "max_num_batched_tokens": 16, "max_model_len": 64}


def tokens(llm, prompts=PROMPTS, params=GREEDY):
    return [output["token_ids"] for output in llm.generate(prompts, params, use_tqdm=False)]


def raise_interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def damage(path, how):
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = {"empty": 0, "half a length": 4, "half a header": 100, "half the data": len(data) // 2}
    size |= {"one byte short": len(data) - 1}
    if how in size:
        del data[size[how] :]
    elif how == "one byte more":
        data.append(0)
    elif how == "huge header":
        data[:8] = (2**63 - 1).to_bytes(8, "little")
    elif how == "no JSON":
        data[8:12] = b"\xff\xfe\x00["
    elif how == "other dtype":
        header = int.from_bytes(data[:8], "little")
        data[8 : 8 + header] = data[8 : 8 + header].replace(b'"F32"', b'"Q32"')
    file.write_bytes(data)
