"""Chats as the reference renders them: templates, messages, tools and options, for tokenizer_vectors.py."""

import json

from transformers.utils.chat_template_utils import render_jinja_template

HERMES = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "system" and tools %}
        {%- continue %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

BLOCKS = """{{ bos_token }}{% for message in messages %}
    {% if loop.index0 > 3 %}
        {% break %}
    {% endif %}
{% if message['role'] == 'assistant' %}{% generation %}
[{{ message['content'] | trim }}]{{ eos_token }}
{% endgeneration %}{% else %}
  {{ message['role'] | title }}: {{ message['content'] }}
    {% endif %}
{% endfor %}
{{ tools | tojson(indent=2) if tools else 'no tools' }} {{ documents is none }} {{ unknown is defined }}
{{ {'b': 1.5, 'a': [true, none, "<&'\u00e9\u4e2d\\u2028>"]} | tojson }}
"""


def chats(pocket):
    """Rows of `chats`; `pocket` is the folder of the bundled model."""
    config = json.loads((pocket / "tokenizer_config.json").read_text())
    talk = [
        {"role": "system", "content": "Be  brief.\n"},
        {"role": "user", "content": "  Hi \u00e9\u4e2d\U0001f600 <b>&amp;'\"\\ "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!\n"},
        {"role": "user", "content": "Weather?"},
    ]
    tools = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": 'The weather\'s state \u2014 "now"',
                "parameters": {
                    "type": "object",
                    "required": ["city"],
                    "properties": {"city": {"type": "string", "max": 1.0}},
                },
            },
        }
    ]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "a": 1}}}
    with_tools = talk + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12 degrees"},
    ]
    tokens = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    cases = [
        ("pocket", config["chat_template"], talk, None, {}, True),
        ("pocket", config["chat_template"], talk[:2], None, {}, False),
        ("hermes", HERMES, talk, None, {}, True),
        ("hermes", HERMES, talk, None, {"enable_thinking": False}, True),
        ("hermes", HERMES, with_tools, tools, {}, True),
        ("blocks", BLOCKS, talk, None, {}, False),
        ("blocks", BLOCKS, talk + talk, tools, {}, True),
    ]
    for name, template, messages, used, kwargs, prompt in cases:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=used,
            chat_template=template,
            add_generation_prompt=prompt,
            **tokens,
            **kwargs,
        )
        yield {
            "name": name,
            "template": template,
            "messages": messages,
            "tools": used,
            "kwargs": kwargs,
            "special_tokens": tokens,
            "add_generation_prompt": prompt,
            "text": rendered[0],
        }
