"""Two questions to a model. Without arguments: the model that comes with the course, on whatever this machine has."""

import argparse

from nanovllm import LLM, SamplingParams

PROMPTS = ["introduce yourself", "list all prime numbers within 100"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-tiny", help="a directory, a hub id (Qwen/Qwen3-0.6B), or qwen3-tiny")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 always takes the most likely token")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same answers")
    parser.add_argument("--prompt", action="append", help="ask this instead (can be repeated)")
    args = parser.parse_args()

    params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens, seed=args.seed)
    prompts = args.prompt or PROMPTS
    with LLM(args.model) as llm:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        print(f"\nPrompt: {prompt}\nAnswer: {output['text']}")


if __name__ == "__main__":
    main()
