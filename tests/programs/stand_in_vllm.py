"""Stands in for vLLM's program: `stand_in_vllm.py serve MODEL ...` speaks its HTTP API and answers by `generate` of transformers.

Unlike vLLM it refuses options and parameters that it does not know, and values that vLLM would convert, so that a wrong one is
seen, and answers while it sleeps. STAND_IN_VLLM has what goes wrong: "memory" and "rank" end it at its start, "dies" at the first
answer, "context" refuses every answer, "hangs" answers none, "stale" keeps the first adapter, "tokens" adds a
token to each prompt. With STAND_IN_VLLM_LOG it writes the path of each request that changes its state into that file.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

WRONG = os.environ.get("STAND_IN_VLLM", "")
NUMBER, NONE = (int, float), type(None)
PARAMETERS = {
    "model": str, "prompt": list, "max_tokens": int, "min_tokens": int, "temperature": NUMBER, "top_p": NUMBER, "top_k": int,
    "min_p": NUMBER, "repetition_penalty": NUMBER, "seed": (int, NONE), "ignore_eos": bool, "stop_token_ids": list,
    "logprobs": (int, NONE), "return_tokens_as_token_ids": bool, "return_token_ids": bool, "stream": bool,
}  # fmt: skip
NEEDED = {"model", "prompt", "max_tokens", "temperature", "ignore_eos", "stop_token_ids", "return_token_ids"}
"""vLLM has other defaults for these than Lathe means."""


def options(arguments):
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--revision")
    parser.add_argument("--served-model-name")
    parser.add_argument("--dtype", choices=["auto", "float32", "float16", "bfloat16"])
    parser.add_argument("--max-model-len")
    parser.add_argument("--generation-config", choices=["vllm"], required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", type=Path)
    where.add_argument("--port", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--logprobs-mode", choices=["raw_logprobs", "processed_logprobs"], default="raw_logprobs")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int, choices=[1, 8, 16, 32, 64, 128, 256, 320, 512], default=16)
    parser.add_argument("--lora-modules", nargs="+", type=json.loads, default=[])
    return parser.parse_args(arguments)


class RefusedError(Exception):
    """A request that is answered with this status."""

    def __init__(self, status, kind, message):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Engine:
    """The base model with its adapters, one answer at a time."""

    def __init__(self, given):
        import torch
        from transformers import AutoModelForCausalLM

        self.name = given.served_model_name
        dtype = given.dtype if given.dtype == "auto" else getattr(torch, given.dtype)
        self.module = AutoModelForCausalLM.from_pretrained(given.model, dtype=dtype).eval()
        context = self.module.config.max_position_embeddings
        self.longest = context if given.max_model_len == "auto" else int(given.max_model_len)
        if self.longest > context:
            raise ValueError(
                f"User-specified max_model_len ({self.longest}) is greater than the derived max_model_len ({context})."
            )
        self.given, self.adapters, self.loaded, self.sleeping = given, {}, 0, False
        for lora in given.lora_modules:
            self.load_adapter(lora["name"], lora["path"])

    def load_adapter(self, name, path):
        from peft import PeftModel

        if not self.given.enable_lora:
            raise ValueError("LoRA is not enabled.")
        rank = json.loads((Path(path) / "adapter_config.json").read_text())["r"]
        if rank > self.given.max_lora_rank or WRONG == "rank":
            raise ValueError(f"LoRA rank {rank} is greater than max_lora_rank {self.given.max_lora_rank}.")
        if WRONG == "stale" and self.loaded:
            self.adapters[name] = "adapter1"
            return
        self.loaded += 1
        inside = self.adapters[name] = f"adapter{self.loaded}"
        if isinstance(self.module, PeftModel):
            self.module.load_adapter(path, adapter_name=inside)
        else:
            self.module = PeftModel.from_pretrained(self.module, path, adapter_name=inside).eval()

    def generate(self, body, prompt):
        """The tokens of an answer, its end token included, with the model's own log probabilities of each (vocabulary,)."""
        import torch
        from transformers import GenerationConfig

        ends = body.get("stop_token_ids") or []
        if not body.get("ignore_eos"):
            ends = [*ends, self.module.config.eos_token_id]
        if body.get("seed") is not None:
            torch.manual_seed(body["seed"])
        heat = body.get("temperature", 1)
        names = ("top_p", "top_k", "min_p")
        sampled = {"temperature": heat} | {name: body[name] for name in names if name in body} if heat else {}
        config = GenerationConfig(
            max_new_tokens=body.get("max_tokens", 16), min_new_tokens=body.get("min_tokens"), do_sample=heat > 0,
            eos_token_id=ends or None, pad_token_id=0, repetition_penalty=body.get("repetition_penalty", 1.0),
            output_logits=True, return_dict_in_generate=True, **sampled,
        )  # fmt: skip
        with self._adapted(body["model"]), torch.inference_mode():
            ids = torch.tensor([prompt])
            self.module.generation_config.eos_token_id = None
            found = self.module.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        divisor = heat if heat and self.given.logprobs_mode == "processed_logprobs" else 1
        return found.sequences[0, len(prompt) :].tolist(), [
            torch.log_softmax(one[0] / divisor, -1) for one in found.logits
        ]

    def _adapted(self, name):
        from contextlib import nullcontext

        if name in self.adapters:
            self.module.set_adapter(self.adapters[name])
        elif self.loaded:
            return self.module.disable_adapter()
        return nullcontext()


def fits(name, value):
    kind = PARAMETERS.get(name, ())
    if name in ("prompt", "stop_token_ids"):
        lists = value if name == "prompt" and value and isinstance(value[0], list) else [value]
        return all(isinstance(ids, list) and all(type(token) is int for token in ids) for ids in lists)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def check(engine, body, prompts):
    wrong = [name for name, value in body.items() if not fits(name, value)]
    if wrong or (wrong := sorted(NEEDED - body.keys())):
        raise RefusedError(400, "BadRequestError", f"unknown, missing or wrong parameters {wrong}")
    if body.get("logprobs") is not None and not body.get("return_tokens_as_token_ids"):
        raise RefusedError(400, "BadRequestError", "the tokens of logprobs would be texts")
    if engine.sleeping:
        raise RefusedError(503, "ServiceUnavailableError", "The engine sleeps.")
    if body["model"] not in (engine.name, *engine.adapters):
        raise RefusedError(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
    for prompt in prompts:
        room = engine.longest - len(prompt)
        if body.get("max_tokens", 16) > room or WRONG == "context":
            raise RefusedError(
                400,
                "BadRequestError",
                f"'max_tokens' or 'max_completion_tokens' is too large: {body['max_tokens']}. This model's maximum context length "
                f"is {engine.longest} tokens and your request has {len(prompt)} input tokens.",
            )


def choice(index, body, tokens, distributions, prompt):
    end = tokens[-1:] and tokens[-1] in (body.get("stop_token_ids") or [])
    found = {
        "index": index,
        "text": "",
        "finish_reason": "stop" if end else "length",
        "stop_reason": None,
        "logprobs": None,
    }
    if body.get("logprobs") is not None:
        most = body["logprobs"]
        tops = []
        for token, distribution in zip(tokens, distributions, strict=True):
            best = distribution.topk(most) if most else None
            top = {f"token_id:{token}": float(distribution[token])}
            if best:
                top |= {
                    f"token_id:{at}": float(value) for value, at in zip(best.values, best.indices.tolist(), strict=True)
                }
            tops.append(top)
        found["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in tokens], "top_logprobs": tops, "text_offset": [0] * len(tokens),
            "token_logprobs": [float(one[token]) for token, one in zip(tokens, distributions, strict=True)],
        }  # fmt: skip
    return found | ({"token_ids": tokens, "prompt_token_ids": prompt} if body.get("return_token_ids") else {})


def changing_routes(engine):
    """Those that vLLM has with VLLM_ALLOW_RUNTIME_LORA_UPDATING and VLLM_SERVER_DEV_MODE."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def changed(request):
        """Adapters, weights and sleep; as vLLM, without an answer in JSON where it has no error."""
        path, body = request.url.path, json.loads(await request.body() or b"{}")
        if log := os.environ.get("STAND_IN_VLLM_LOG"):
            with Path(log).open("a") as file:
                file.write(f"{path} {body.get('lora_name', '')}\n")
        try:
            match path:
                case "/v1/load_lora_adapter":
                    if not Path(body["lora_path"]).is_dir():
                        missing = f"No adapter found for {body['lora_path']}"
                        raise RefusedError(404, "NotFoundError", missing)
                    engine.load_adapter(body["lora_name"], body["lora_path"])
                case "/v1/unload_lora_adapter":
                    del engine.adapters[body["lora_name"]]
                case "/sleep" | "/wake_up":
                    assert engine.given.enable_sleep_mode
                    engine.sleeping = path == "/sleep"
        except ValueError as error:
            refused = RefusedError(500, "InternalServerError", str(error))
            return JSONResponse(refused.body, refused.status)
        except RefusedError as refused:
            return JSONResponse(refused.body, refused.status)
        return Response(status_code=200)

    of = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"],
        "VLLM_SERVER_DEV_MODE": ["/sleep", "/wake_up"],
    }
    names = [name for variable, paths in of.items() if os.environ.get(variable) for name in paths]
    return [Route(name, changed, methods=["POST"]) for name in names]


def application(engine):
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    one_at_a_time = asyncio.Lock()
    head = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": engine.name}

    async def health(_):
        return Response(status_code=200)

    async def models(_):
        base = {"id": engine.name, "object": "model", "owned_by": "vllm", "max_model_len": engine.longest}
        adapters = [
            {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": None} for name in engine.adapters
        ]
        return JSONResponse({"object": "list", "data": [base, *adapters]})

    async def answered(body, prompt):
        if WRONG == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if WRONG == "hangs":
            await asyncio.Event().wait()
        async with one_at_a_time:
            return await asyncio.to_thread(engine.generate, body, prompt)

    async def streamed(body, prompt):
        tokens, distributions = await answered(body, prompt)
        for index, token in enumerate(tokens):
            part = choice(0, body, [token], distributions[index : index + 1], prompt if not index else None)
            if index + 1 < len(tokens):
                part["finish_reason"] = None
            yield f"data: {json.dumps(head | {'choices': [part]})}\n\n"
        yield "data: [DONE]\n\n"

    async def complete(request):
        body = await request.json()
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        try:
            check(engine, body, prompts)
        except RefusedError as refused:
            return JSONResponse(refused.body, refused.status)
        if body.get("stream"):
            return StreamingResponse(streamed(body, prompts[0]), media_type="text/event-stream")
        if WRONG == "tokens":
            prompts = [[*prompt, 1] for prompt in prompts]
        choices = [choice(index, body, *await answered(body, prompt), prompt) for index, prompt in enumerate(prompts)]
        return JSONResponse(head | {"choices": choices[::-1]})  # in any order

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/completions", complete, methods=["POST"]),
    ]
    return Starlette(routes=[*routes, *changing_routes(engine)])


def main(arguments):
    import uvicorn

    given = options(arguments)
    if WRONG == "memory":
        print(
            "ERROR ValueError: Free memory on device cuda:0 (1.2/80.0 GiB) on startup is less than desired.",
            file=sys.stderr,
        )
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)
        sys.exit(1)
    where = {"uds": str(given.uds)} if given.uds else {"port": given.port}
    uvicorn.run(application(Engine(given)), log_level="warning", lifespan="off", **where)


if __name__ == "__main__":
    main(sys.argv[1:])
