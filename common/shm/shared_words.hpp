#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace wisp::shm {

/// Copies of memory whose writer may be writing it now: what was read is believed only once a look at its
/// generation (seqlock) or commit word says that nothing has changed, and thrown away else. Word by word, so
/// that this is no race of plain accesses; loads acquire and stores release, so that whoever has read a new
/// word also sees what was said before it was written, and the look comes after the words.
/// H.-J. Boehm, Can seqlocks get along with programming language memory models?, MSPC 2012.
template <class Word>
Word load_word(const Word* from) {
  // The memory may be mapped read-only: a load of a word never writes.
  return std::atomic_ref<Word>(*const_cast<Word*>(from)).load(std::memory_order_acquire);
}
template <class Word>
void store_word(Word* to, Word word) {
  std::atomic_ref<Word>(*to).store(word, std::memory_order_release);
}
template <class Word>
void load_words(const Word* from, std::span<Word> out) {
  for (Word& w : out) w = load_word(from++);
}
template <class Word>
void store_words(Word* to, std::span<const Word> words) {
  for (const Word w : words) store_word(to++, w);
}

/// The same of a plain struct, as words of 32 bits.
template <class T>
concept MadeOfWords = std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint32_t) == 0 &&
                      alignof(T) % alignof(std::uint32_t) == 0;

template <MadeOfWords T>
T load_shared(const T& from) {
  std::uint32_t words[sizeof(T) / sizeof(std::uint32_t)];
  load_words(reinterpret_cast<const std::uint32_t*>(&from), std::span<std::uint32_t>(words));
  T out;
  std::memcpy(&out, words, sizeof out);
  return out;
}
template <MadeOfWords T>
void store_shared(T& to, const T& value) {
  std::uint32_t words[sizeof(T) / sizeof(std::uint32_t)];
  std::memcpy(words, &value, sizeof value);
  store_words(reinterpret_cast<std::uint32_t*>(&to), std::span<const std::uint32_t>(words));
}

}  // namespace wisp::shm
