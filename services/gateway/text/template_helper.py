"""Renders chat templates for the gateway, away from its memory and its life.

Usage: template_helper.py PARENT_PID MEMORY_MIB CPU_SECONDS, with a stream socket as descriptor 0. Each
message is a little-endian u32 length and that many bytes of JSON. A request is
{"template": text, "context": {...}}; the answer is {"text": rendered} or
{"error": text, "kind": "template" | "type" | "memory"}. The helper ends at end of file, with its parent, or
when a request takes more than CPU_SECONDS of processor time. A template is code from a stranger: it runs in
Jinja's immutable sandbox, under limits on memory, time and files.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
MAX_MESSAGE = 64 << 20
MAX_ERROR = 2000
MAX_CACHED = 4


def die_with_parent(parent):
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The parent may have died before the line above.
    if os.getppid() != parent:
        os._exit(0)


die_with_parent(int(sys.argv[1]))
os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
signal.signal(signal.SIGINT, signal.SIG_IGN)

import datetime  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402

import jinja2  # noqa: E402
import jinja2.ext  # noqa: E402
import jinja2.sandbox  # noqa: E402


def set_limits(memory_mib):
    """After the imports: from here on nothing new is to be opened, and memory is for templates."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = memory_mib << 20 if hard == resource.RLIM_INFINITY else min(memory_mib << 20, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))


def allow_cpu(seconds):
    """RLIMIT_CPU counts from the start of the process, so each request moves it on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks text for training; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(pattern):
    return datetime.datetime.now().strftime(pattern)


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def render(environment, cache, request):
    text = request["template"]
    template = cache.get(text)
    if template is None:
        if len(cache) >= MAX_CACHED:
            cache.clear()
        template = environment.from_string(text)
        cache[text] = template
    return template.render(request["context"])


def describe(error):
    if isinstance(error, jinja2.TemplateSyntaxError):
        text = f"line {error.lineno}: {error.message}"
    else:
        text = str(error) or type(error).__name__
    return text.encode("utf-8", "replace").decode("utf-8")[:MAX_ERROR]


def answer(environment, cache, data):
    try:
        text = render(environment, cache, json.loads(data))
        return json.dumps({"text": text}, ensure_ascii=False).encode("utf-8"), True
    except MemoryError:
        cache.clear()
        return b'{"error": "needs more memory than the helper may use", "kind": "memory"}', False
    except TypeError as error:
        reply = {"error": describe(error), "kind": "type"}
    except Exception as error:  # whatever the template raises is its own error
        reply = {"error": describe(error), "kind": "template"}
    return json.dumps(reply).encode("ascii"), True


def read_exactly(size):
    chunks = []
    while size > 0:
        chunk = os.read(0, min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def write_all(data):
    view = memoryview(data)
    while view:
        view = view[os.write(0, view) :]


def main():
    memory_mib, cpu_seconds = int(sys.argv[2]), int(sys.argv[3])
    environment = make_environment()
    # The first rendering imports what Jinja loads late; do it before the limits.
    environment.from_string("{% for m in [1] %}{{ {'a': m} | tojson }}{% endfor %}").render()
    datetime.datetime.now().strftime("%d %b %Y")
    set_limits(memory_mib)
    cache = {}
    while True:
        head = read_exactly(4)
        if head is None:
            return
        (size,) = struct.unpack("<I", head)
        if size > MAX_MESSAGE:
            return
        data = read_exactly(size)
        if data is None:
            return
        allow_cpu(cpu_seconds)
        reply, healthy = answer(environment, cache, data)
        del data
        write_all(struct.pack("<I", len(reply)) + reply)
        if not healthy:
            return  # a heap that was full once stays fragmented; the next request gets a new helper


if __name__ == "__main__":
    main()
