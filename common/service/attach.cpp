#include <fcntl.h>

#include <algorithm>

#include "service/stage.hpp"

namespace wisp::service {

namespace {

using shm::StageId;

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

/// Maps descriptor `fd` and keeps the mapping in `at`. Errors: kNotFound, kIo.
Result<std::shared_ptr<shm::Mapping>> map_into(Attachment& at, int fd, bool writable,
                                               const std::string& name) {
  if (!is_open(fd))
    return not_found("region " + name + " was not inherited as descriptor " + std::to_string(fd));
  auto mapped = shm::Mapping::map(fd, writable);
  if (!mapped.ok()) return std::move(mapped).error().within("region " + name);
  auto mapping = std::make_shared<shm::Mapping>(std::move(*mapped));
  at.mappings.push_back(mapping);
  return mapping;
}

/// The same with a header of `kind` checked.
template <class T>
Result<T*> attach_region(Attachment& at, int fd, bool writable, shm::RegionKind kind,
                         const std::string& name) {
  WISP_ASSIGN(auto mapping, map_into(at, fd, writable, name));
  auto checked = shm::check_header(*mapping, kind);
  if (!checked.ok()) return std::move(checked).error().within(name);
  // Rings and tables are gone through page by page for a long time: none of these pages is to be new in the
  // middle of an answer. KV has an order of its own.
  if (kind != shm::RegionKind::kKv) shm::enter_in_page_table(mapping->data(), mapping->size(), writable);
  return static_cast<T*>(mapping->data());
}

std::string desk_name(StageId s) {
  return "desk." + std::string(shm::name_of(s));
}

std::uint64_t size_of_mapping(const Attachment& at, const void* data) {
  for (const auto& m : at.mappings)
    if (m->data() == data) return m->size();
  return 0;
}

Status expect(const char* what, std::uint64_t have, std::uint64_t want) {
  if (have == want) return {};
  return corrupt(std::string(what) + " is " + std::to_string(have) + " where the plan says " +
                 std::to_string(want));
}

}  // namespace

Result<Attachment> attach_inherited(const std::vector<StageId>& writable) {
  const auto hosts = [&](StageId s) {
    return std::find(writable.begin(), writable.end(), s) != writable.end();
  };
  using shm::RegionKind;
  Attachment at;
  WISP_ASSIGN(at.life, attach_region<const shm::Life>(at, fds::kLife, false, RegionKind::kLife, "life"));
  for (std::uint32_t i = 0; i < shm::kStages; ++i) {
    const auto s = static_cast<StageId>(i);
    at.bell[i] = ring::Doorbell(is_open(fds::bell(s)) ? fds::bell(s) : -1);
    if (!is_open(fds::desk(s)) && !hosts(s)) continue;
    WISP_ASSIGN(at.desk[i],
                attach_region<shm::Desk>(at, fds::desk(s), hosts(s), RegionKind::kDesk, desk_name(s)));
    if (at.desk[i]->stage != i) return corrupt(desk_name(s) + " belongs to another stage");
  }
  const bool loader = hosts(StageId::kLoader);
  const bool compute = hosts(StageId::kCompute);
  if (is_open(fds::kSlabDir) || loader || compute) {
    WISP_ASSIGN(at.slab_dir,
                attach_region<slab::SlabDir>(at, fds::kSlabDir, loader, RegionKind::kSlabDir, "slabdir"));
  }
  // The speculator has these two where a draft head drafts.
  const bool speculator = hosts(StageId::kSpeculator);
  if (loader || compute) {
    WISP_ASSIGN(auto slab, map_into(at, fds::kSlab, loader, "slab"));
    at.slab = static_cast<std::byte*>(slab->data());
  }
  if (loader || compute || (speculator && is_open(fds::kDense))) {
    WISP_ASSIGN(auto dense, map_into(at, fds::kDense, loader, "dense"));
    at.dense = static_cast<std::byte*>(dense->data());
  }
  if (compute || (speculator && is_open(fds::kKv))) {
    WISP_ASSIGN(at.kv, attach_region<shm::Kv>(at, fds::kKv, compute, RegionKind::kKv, "kv"));
  }
  if (is_open(fds::kJournal) || compute || hosts(StageId::kRouter)) {
    WISP_ASSIGN(at.journal, attach_region<shm::Journal>(at, fds::kJournal, hosts(StageId::kRouter),
                                                        RegionKind::kJournal, "journal"));
  }
  return at;
}

Status check_against_plan(const Attachment& at) {
  for (StageId s : shm::kRunningStages) {
    const shm::Desk* d = at.desk[shm::index(s)];
    if (d == nullptr) continue;
    const std::string name = "size of " + desk_name(s);
    WISP_TRY(expect(name.c_str(), d->region.size, shm::desk_size(s, plan::desk_plan(at.plan, s))));
  }
  if (at.slab != nullptr)
    WISP_TRY(expect("size of slab", size_of_mapping(at, at.slab), at.plan.slab_bytes()));
  if (at.dense != nullptr)
    WISP_TRY(expect("size of dense", size_of_mapping(at, at.dense), at.plan.dense_bytes));
  if (at.slab_dir != nullptr) {
    WISP_TRY(expect("slots of slabdir", at.slab_dir->slots, at.plan.slots));
    WISP_TRY(expect("layers of slabdir", at.slab_dir->layers, at.plan.layers));
    WISP_TRY(expect("experts of slabdir", at.slab_dir->experts, at.plan.experts_per_layer));
    WISP_TRY(expect("stride of slabdir", at.slab_dir->stride, at.plan.stride));
  }
  if (at.kv != nullptr) {
    WISP_TRY(expect("pages of kv", at.kv->pages, at.plan.kv_pages));
    WISP_TRY(expect("format of kv", at.kv->format, static_cast<std::uint32_t>(at.plan.kv_format)));
    WISP_TRY(expect("page size of kv", at.kv->page_bytes, at.plan.kv_page_bytes));
  }
  if (at.journal != nullptr) {
    WISP_TRY(expect("records of journal", at.journal->records, at.plan.records));
    WISP_TRY(expect("capacity of journal", at.journal->capacity, at.plan.ctx));
    WISP_TRY(expect("log-probabilities of journal", at.journal->logprobs, at.plan.options.logprobs));
    WISP_TRY(expect("profile of journal", at.journal->profile_hash, at.plan.profile_hash));
  }
  return {};
}

}  // namespace wisp::service
