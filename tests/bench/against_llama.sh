#!/bin/sh
# WISP against llama.cpp with mmap, both under a memory cgroup of 50 % and 25 % of the model, page cache dropped, in turns, with fio
# between, at the drive's read_ahead_kb as found and at 128 (llama.cpp's speed hangs on it; WISP reads around it). Root.
#
#     tests/bench/against_llama.sh LLAMA_BENCH DIR/m DIR/m.gguf [PAIRS [more arguments of decode_against_llama.py]]
#
# See decode_against_llama.py for how the model and llama-bench are made. The setting of the drive is put back at the end.
set -eu
[ $# -ge 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
rival=$1 model=$2 gguf=$3 pairs=${4:-7}
shift 3; [ $# -eq 0 ] || shift
here=$(dirname "$0")

drive=$(findmnt -n -o SOURCE -T "$gguf")
drive=$(lsblk -n -o PKNAME "$drive" | head -n 1 | grep . || basename "$drive")
knob=/sys/block/$drive/queue/read_ahead_kb
found=$(cat "$knob")
trap 'echo "$found" > "$knob"' EXIT
trap 'exit 130' INT TERM

echo "$(uname -srm); $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1) x $(nproc); drive $drive; read_ahead_kb as found: $found"
# As found last, so that a script that is killed outright is less likely to leave the other one behind.
for ahead in 128 "$found"; do
    echo "$ahead" > "$knob"
    for cap in ${CAPS:-50 25}; do
        echo; echo "== read_ahead_kb $ahead, cap $cap %"
        "$here/decode_against_llama.py" --llama-bench "$rival" --model "$model" --gguf "$gguf" --cap "$cap" --pairs "$pairs" \
            --prompt 32 --tokens 16 "$@"
    done
done
