#include "service/debug_layout.hpp"

#include <cstddef>

#include "shm/desk.hpp"
#include "shm/journal.hpp"
#include "slab/slot_word.hpp"

using wisp::ring::Descriptor;
using wisp::shm::Desk;
using wisp::shm::EdgePlace;
using wisp::shm::Journal;
using wisp::shm::JournalRecord;
using wisp::shm::RequestParams;
using wisp::slab::SlabDir;
using wisp::slab::SlotEntry;

extern "C" const wisp::service::LayoutEntry wisp_debug_layout[] = {
    {"edges", wisp::shm::kEdges},
    {"cursor", sizeof(wisp::shm::Cursor)},
    {"desk.edges", offsetof(Desk, edges)},
    {"desk.extra_offset", offsetof(Desk, extra_offset)},
    {"desk.attached_epoch", offsetof(Desk, attached_epoch)},
    {"desk.waits_for", offsetof(Desk, waits_for)},
    {"desk.waits_detail", offsetof(Desk, waits_detail)},
    {"desk.parked", offsetof(Desk, parked)},
    {"desk.rx_head", offsetof(Desk, rx_head)},
    {"desk.tx_tail", offsetof(Desk, tx_tail)},
    {"edge", sizeof(EdgePlace)},
    {"edge.ring_offset", offsetof(EdgePlace, ring_offset)},
    {"edge.slots", offsetof(EdgePlace, slots)},
    {"descriptor", sizeof(Descriptor)},
    {"descriptor.kind", offsetof(Descriptor, kind)},
    {"descriptor.request", offsetof(Descriptor, request)},
    {"descriptor.pos", offsetof(Descriptor, pos)},
    {"descriptor.slot", offsetof(Descriptor, slot)},
    {"descriptor.key", offsetof(Descriptor, key)},
    {"descriptor.aux", offsetof(Descriptor, aux)},
    {"slabdir.slots", offsetof(SlabDir, slots)},
    {"slabdir.entries_offset", offsetof(SlabDir, entries_offset)},
    {"slot", sizeof(SlotEntry)},
    {"slot.word", offsetof(SlotEntry, word)},
    {"slot.fill_epoch", offsetof(SlotEntry, fill_epoch)},
    {"slot.bytes", offsetof(SlotEntry, bytes)},
    {"journal.records", offsetof(Journal, records)},
    {"journal.records_offset", offsetof(Journal, records_offset)},
    {"journal.stride", offsetof(Journal, stride)},
    {"record.request", offsetof(JournalRecord, request)},
    {"record.commit", offsetof(JournalRecord, commit)},
    {"record.kv_len", offsetof(JournalRecord, kv_len)},
    {"record.admitted", offsetof(JournalRecord, admitted)},
    {"record.prompt_tokens", offsetof(JournalRecord, params) + offsetof(RequestParams, prompt_tokens)},
    {"record.max_tokens", offsetof(JournalRecord, params) + offsetof(RequestParams, max_tokens)},
    {"record.ids", sizeof(JournalRecord)},
    {nullptr, 0},
};
