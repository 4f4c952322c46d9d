"""GDB commands that read WISP's shared regions in an attached stage.

    wisp rings       every edge: published, consumed, and the oldest message that waits
    wisp slot N      state of slot N of the slab
    wisp lease       slots that compute leases now
    wisp seq REQ     the journal record of a request (hexadecimal or decimal id)

The regions are found in /proc/PID/maps, the offsets in the table `wisp_debug_layout` of the program, so no
type information is needed. Nothing is written.
"""

import os
import struct

import gdb

STAGES = ["gateway", "router", "loader", "compute", "speculator"]
EDGES = {1: (0, 1), 2: (1, 0), 3: (1, 3), 4: (3, 1), 5: (3, 2), 6: (2, 3)}
KINDS = ["none", "submit", "cancel", "finish_at", "acknowledge", "adopt", "token", "step", "step_result",
         "touch", "need", "slot_ready", "slot_failed"]
WAITS = ["nothing", "work", "ring space", "expert", "dense", "step gate", "step result", "tombstone", "lease",
         "drive", "KV pages"]
SLOT_STATES = ["FREE", "FILLING", "READY", "EVICTING"]
FINISHES = ["", "stop", "length", "stop string", "cancelled", "error"]


class Wisp:
    """The regions and the layout of the process that gdb is attached to."""

    def __init__(self):
        self.inferior = gdb.selected_inferior()
        if not self.inferior.pid:
            raise gdb.GdbError("attach to a stage first: gdb -p PID")
        self.layout = self.read_layout()
        self.regions = {}
        with open(os.path.join("/proc", str(self.inferior.pid), "maps")) as maps:
            for line in maps:
                fields = line.split(None, 5)
                if len(fields) < 6 or "memfd:wisp." not in fields[5]:
                    continue
                name = fields[5].split("memfd:wisp.", 1)[1].replace(" (deleted)", "").strip()
                self.regions.setdefault(name, int(fields[0].split("-")[0], 16))

    def bytes(self, address, size):
        return bytes(self.inferior.read_memory(address, size))

    def u8(self, address):
        return self.bytes(address, 1)[0]

    def u32(self, address):
        return struct.unpack("<I", self.bytes(address, 4))[0]

    def u64(self, address):
        return struct.unpack("<Q", self.bytes(address, 8))[0]

    def read_layout(self):
        try:
            at = int(gdb.parse_and_eval("(unsigned long)&wisp_debug_layout"))
        except gdb.error:
            raise gdb.GdbError("no wisp_debug_layout here: this is no stage of WISP, or it was stripped")
        layout = {}
        while True:
            name = self.u64(at)
            if name == 0:
                return layout
            text = b""
            while not text.endswith(b"\0"):
                text += self.bytes(name + len(text), 1)
            layout[text[:-1].decode()] = self.u64(at + 8)
            at += 16

    def region(self, name):
        if name not in self.regions:
            raise gdb.GdbError("this stage does not map region %s; it has: %s"
                               % (name, ", ".join(sorted(self.regions)) or "none yet"))
        return self.regions[name]

    def desk(self, stage):
        return self.region("desk." + STAGES[stage])

    def cursor(self, stage, array, edge):
        return self.u64(self.desk(stage) + self.layout[array] + edge * self.layout["cursor"])


class WispPrefix(gdb.Command):
    """Reads WISP's shared regions."""

    def __init__(self):
        super().__init__("wisp", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)


class Rings(gdb.Command):
    """wisp rings: cursors of every edge and what each stage waits for."""

    def __init__(self):
        super().__init__("wisp rings", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        w = Wisp()
        o = w.layout
        for edge, (producer, consumer) in sorted(EDGES.items()):
            place = w.desk(producer) + o["desk.edges"] + edge * o["edge"]
            ring = w.desk(producer) + w.u64(place + o["edge.ring_offset"])
            slots = w.u32(place + o["edge.slots"])
            head = w.cursor(consumer, "desk.rx_head", edge)
            tail = w.cursor(producer, "desk.tx_tail", edge)
            line = "edge %d  %-8s -> %-8s published %d, consumed %d" % (
                edge, STAGES[producer], STAGES[consumer], tail, head)
            oldest = ring + (head % slots) * o["descriptor"] if slots else 0
            if slots and w.u64(oldest) == head + 1:
                kind = w.u8(oldest + o["descriptor.kind"])
                line += "; next: %s request %#x pos %d slot %d key %#x aux %d" % (
                    KINDS[kind] if kind < len(KINDS) else kind, w.u64(oldest + o["descriptor.request"]),
                    w.u32(oldest + o["descriptor.pos"]), w.u32(oldest + o["descriptor.slot"]),
                    w.u32(oldest + o["descriptor.key"]), w.u64(oldest + o["descriptor.aux"]))
            print(line)
        for stage in range(4):
            desk = w.desk(stage)
            why = w.u32(desk + o["desk.waits_for"])
            print("%-8s epoch %d, %s, waits for %s (%d)" % (
                STAGES[stage], w.u32(desk + o["desk.attached_epoch"]),
                "asleep" if w.u32(desk + o["desk.parked"]) else "awake",
                WAITS[why] if why < len(WAITS) else why, w.u64(desk + o["desk.waits_detail"])))


def describe_slot(w, number):
    o = w.layout
    slabdir = w.region("slabdir")
    entry = slabdir + w.u64(slabdir + o["slabdir.entries_offset"]) + number * o["slot"]
    word = w.u64(entry + o["slot.word"])
    key = word & 0xffffffff
    state = word >> 60
    return "slot %d: %s generation %d, layer %d expert %d, filled by epoch %d, %d bytes" % (
        number, SLOT_STATES[state] if state < len(SLOT_STATES) else state, word >> 32 & 0xfffffff, key >> 16,
        key & 0xffff, w.u32(entry + o["slot.fill_epoch"]), w.u32(entry + o["slot.bytes"]))


def slot_count(w):
    return w.u32(w.region("slabdir") + w.layout["slabdir.slots"])


class Slot(gdb.Command):
    """wisp slot N: state of a slot of the slab."""

    def __init__(self):
        super().__init__("wisp slot", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        w = Wisp()
        count = slot_count(w)
        try:
            number = int(argument, 0)
        except ValueError:
            raise gdb.GdbError("wisp slot N: a number below %d" % count)
        if not 0 <= number < count:
            raise gdb.GdbError("there are %d slots" % count)
        print(describe_slot(w, number))


class Lease(gdb.Command):
    """wisp lease: slots that compute leases now."""

    def __init__(self):
        super().__init__("wisp lease", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        w = Wisp()
        desk = w.desk(STAGES.index("compute"))
        count = slot_count(w)
        row = w.bytes(desk + w.u64(desk + w.layout["desk.extra_offset"]), 8 * count)
        leased = [(n, g) for n, g in enumerate(struct.unpack("<%dQ" % count, row)) if g]
        for number, generation in leased:
            print("generation %d of %s" % (generation, describe_slot(w, number)))
        if not leased:
            print("no slot is leased")


class Sequence(gdb.Command):
    """wisp seq REQ: the journal record of a request; without REQ all of them."""

    def __init__(self):
        super().__init__("wisp seq", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        w = Wisp()
        o = w.layout
        journal = w.region("journal")
        try:
            wanted = int(argument, 0) if argument.strip() else None
        except ValueError:
            raise gdb.GdbError("wisp seq REQ: a request id such as 0x100000001")
        found = False
        first = journal + w.u64(journal + o["journal.records_offset"])
        stride = w.u64(journal + o["journal.stride"])
        for i in range(w.u32(journal + o["journal.records"])):
            record = first + i * stride
            request = w.u64(record + o["record.request"])
            if request == 0 or (wanted is not None and request != wanted):
                continue
            found = True
            commit = w.u64(record + o["record.commit"])
            length, finish = commit >> 40, commit >> 32 & 0xff
            prompt = w.u32(record + o["record.prompt_tokens"])
            print("record %d request %#x: prompt %d, generated %d of %d%s, kv_len %d, %s" % (
                i, request, prompt, length, w.u32(record + o["record.max_tokens"]),
                ", finished: %s" % (FINISHES[finish] if finish < len(FINISHES) else finish) if finish else "",
                w.u32(record + o["record.kv_len"]),
                "admitted" if w.u32(record + o["record.admitted"]) else "queued"))
            shown = min(length, 16)
            ids = w.bytes(record + o["record.ids"] + 4 * (prompt + length - shown), 4 * shown)
            print("  last ids: " + " ".join(str(n) for n in struct.unpack("<%dI" % shown, ids)))
        if not found:
            print("no such record" if wanted is not None else "the journal is empty")


for command in (WispPrefix, Rings, Slot, Lease, Sequence):
    command()
