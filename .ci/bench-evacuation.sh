#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# How fast memory is given back to a spill, beside fio's sequential writes to the
# same disk in the same run, in turns. Bar: at least 80 %.
#   .ci/bench-evacuation.sh BIN_DIR [FOLDER [SIZE_MIB [TIER [ROUNDS]]]]
# FOLDER is on the disk in question and gets two files of SIZE_MIB; TIER is ram or cuda.
set -eu
bin=$1
place=${2:-.}
mib=${3:-1024}
tier=${4:-ram}
rounds=${5:-3}
folder=$(mktemp -d "$place/bench-evacuation.XXXXXX")
server=
trap 'kill $server 2>/dev/null || true; wait; rm -rf "$folder"' EXIT INT TERM

# Overwrites a file that is written in full, as a spill is; bytes per second.
fio_rate() {
	fio --name=sequential --filename="$folder/fio" --size="${mib}M" --rw=write --bs=2M \
		--direct=1 --ioengine=libaio --iodepth=6 --output-format=json |
		python3 -c 'import json, sys; print(int(json.load(sys.stdin)["jobs"][0]["write"]["bw_bytes"]))'
}

"$bin/sluice" spill create "$folder/spill" --size "${mib}M" >"$folder/log"
fio_rate >"$folder/first"
round=1
while [ "$round" -le "$rounds" ]; do
	"$bin/sluice" serve --tier "$tier" --size "${mib}M" --spill "$folder/spill" \
		--socket "$folder/socket" --control "$folder/control" >"$folder/log" &
	server=$!
	tries=0
	until [ -S "$folder/socket" ] && [ -S "$folder/control" ]; do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || { echo "bench-evacuation.sh: the server does not listen" >&2; exit 1; }
		sleep 0.1
	done
	# Slabs are taken as pages come: filled at this pace all find one in time.
	"$bin/sluice" bench "unix:$folder/socket" --block 1M --depth 2 --write 0 --fill --seconds 1 \
		--rounds 1 --json >"$folder/filled"
	before=$(fio_rate)
	"$bin/sluice" vram drain --socket "$folder/control" --within 600s --json >"$folder/outcome"
	after=$(fio_rate)
	python3 - "$folder/outcome" "$before" "$after" "$round" <<-'END'
		import json, sys
		outcome = json.load(open(sys.argv[1]))
		fio = [int(rate) for rate in sys.argv[2:4]]
		assert outcome["outcome"] == "done", outcome
		rate = outcome["moved_bytes"] * 1000 / max(outcome["elapsed_ms"], 1)
		mean = sum(fio) / len(fio)
		print(
		    f"round {sys.argv[4]}: {outcome['moved_bytes'] >> 20} MiB evacuated in "
		    f"{outcome['elapsed_ms']} ms, {rate / 1e6:.0f} MB/s; fio before and after "
		    f"{fio[0] / 1e6:.0f} and {fio[1] / 1e6:.0f} MB/s: {100 * rate / mean:.0f} %"
		)
	END
	kill "$server"
	wait "$server" || true
	server=
	round=$((round + 1))
done
