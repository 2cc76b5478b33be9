"""Chat templates of common formats, which the setting `chat_template` takes by name. They join texts and nothing else."""

_ASKS = "{% if add_generation_prompt %}"


def _turns(head: str, opening: str, closing: str, answer: str) -> str:
    """A template that writes `head`, each message between `opening` and `closing`, and `answer` as the generation prompt."""
    body = f"{{% for message in messages %}}{opening}{{{{ message['content'] }}}}{closing}{{% endfor %}}"
    return f"{head}{body}{_ASKS}{answer}{{% endif %}}"


_ROLE = "{{ message['role'] }}"
_SYSTEM_FIRST = (
    "{% set system = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for message in messages if message['role'] != 'system' %}"
)

NAMED = {
    "chatml": _turns("", f"<|im_start|>{_ROLE}\n", "<|im_end|>{{ '\\n' }}", "<|im_start|>assistant{{ '\\n' }}"),
    "llama3": _turns(
        "{{ bos_token }}",
        f"<|start_header_id|>{_ROLE}<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}",
    ),
    "zephyr": _turns("", f"<|{_ROLE}|>\n", "{{ eos_token + '\\n' }}", "<|assistant|>{{ '\\n' }}"),
    "gemma": (
        "{{ bos_token }}" + _SYSTEM_FIRST + "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
        "{{ (system if loop.first else '') + message['content'] }}<end_of_turn>{{ '\\n' }}{% endfor %}"
        + _ASKS + "<start_of_turn>model{{ '\\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}" + _SYSTEM_FIRST + "{% if message['role'] == 'user' %}"
        "[INST] {{ (system if loop.first else '') + message['content'] }} [/INST]"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
}  # fmt: skip
"""By name: chatml (Qwen), llama3 (Llama 3), zephyr, gemma (Gemma 1 to 3), mistral. Gemma's and Mistral's write a system message
into the first message of the user."""
