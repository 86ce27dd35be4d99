/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CONFIG_TABLE_H
#define BASE_CONFIG_TABLE_H

/* Every setting there is. The environment variable is WIMM_ and the name in capitals.
 * X(ID, name, unit, type, min, max, default, help) */
#define CONFIG_MAP(X)                                                                              \
	X(LOG_LEVEL, "log_level", "", LEVEL, 0, 4, 2,                                              \
	  "what is logged: off, error, warn, info or debug")                                       \
	X(MAX_OPS, "max_ops", "operations", INT, 16, 1 << 24, 16384,                               \
	  "operations in flight on one engine; the next submission says AGAIN")                    \
	X(INDEX_BYTES_LIMIT, "index_bytes_limit", "bytes", BYTES, 1 << 16, INT64_C(1) << 40,       \
	  256 << 20, "copied page index arrays of all pending operations together")                \
	X(SPIN_US, "spin_us", "us", INT, 0, 1000000, 20,                                           \
	  "how long an idle worker polls before it sleeps, and the callback thread after a"        \
	  " callback while operations are open (not on fewer than 4 CPUs)")                        \
	X(WATCH_SPIN_US, "watch_spin_us", "us", INT, 0, 1000000000, 1000,                          \
	  "how long the watcher and the callback thread spin after a change, while a watcher is"   \
	  " armed, before they look with pauses or sleep")                                       \
	X(BUSY_POLL, "busy_poll", "", BOOL, 0, 1, 0,                                               \
	  "workers never sleep: lower latency for a whole core each")                              \
	X(HEARTBEAT_MS, "heartbeat_ms", "ms", INT, 1, 3600000, 1000,                               \
	  "time between heartbeats to a peer")                                                     \
	X(PEER_TIMEOUT_MS, "peer_timeout_ms", "ms", INT, 1, 86400000, 5000,                        \
	  "silence after which a peer counts as lost; keep it above three heartbeats")             \
	X(HELLO_TIMEOUT_MS, "hello_timeout_ms", "ms", INT, 1, 86400000, 3000,                      \
	  "time a new peer has to answer the hello")                                               \
	X(POST_BATCH, "post_batch", "requests", INT, 1, 65536, 64,                                 \
	  "work requests posted to one peer before another has its turn")                          \
	X(SPLIT_BYTES, "split_bytes", "bytes", BYTES, 4096, INT64_C(1) << 40, 256 << 10,           \
	  "single writes from this length on are split over the NICs")                             \
	X(MAX_MSG_BYTES, "max_msg_bytes", "bytes", BYTES, 64, 1 << 30, 65536,                      \
	  "longest message of a send")                                                             \
	X(MAX_PEERS, "max_peers", "peers", INT, 1, 1 << 20, 4096,                                  \
	  "peers one engine may be connected to")                                                  \
	X(MAX_REGIONS, "max_regions", "regions", INT, 1, 1 << 24, 65536,                           \
	  "regions one engine may have registered")                                                \
	X(UNEXPECTED_IMMS, "unexpected_imms", "values", INT, 1, 1 << 30, 65536,                    \
	  "immediate values nobody expected that a peer may create; one more closes it")           \
	X(PROGRESS_CPU, "progress_cpu", "cpu", INT, -1, 1023, -1,                                  \
	  "CPU the workers are pinned to; -1 = any of the NICs' NUMA node")                        \
	X(TCP_CHUNK_BYTES, "tcp_chunk_bytes", "bytes", BYTES, 4096, 1 << 30, 1 << 20,              \
	  "tcp: longest frame; a long write is cut into frames of this length")                    \
	X(TCP_SNDBUF_BYTES, "tcp_sndbuf_bytes", "bytes", BYTES, 0, 1 << 30, 0,                     \
	  "tcp: send and receive buffer asked of the kernel for a socket; 0 = its own tuning")     \
	X(TCP_USER_TIMEOUT_MS, "tcp_user_timeout_ms", "ms", INT, 0, 86400000, 0,                   \
	  "tcp: how long sent bytes may stay unacknowledged before a connection counts as lost;"   \
	  " 0 = five peer time-outs")                                                              \
	X(TCP_PACING_BYTES_S, "tcp_pacing_bytes_s", "bytes/s", BYTES, 0, INT64_C(1) << 40, 0,      \
	  "tcp: the kernel sends at most so fast on each connection; 0 = no limit")                \
	X(HOST_ANY_UID, "host_any_uid", "", BOOL, 0, 1, 0,                                         \
	  "host: let processes of other users connect")                                            \
	X(VERBS_GID_INDEX, "verbs_gid_index", "", INT, -1, 255, -1,                                \
	  "verbs: entry of the port's GID table to speak from; -1 = the most routable one")        \
	X(VERBS_MTU, "verbs_mtu", "bytes", INT, 0, 4096, 0,                                        \
	  "verbs: longest packet, 256 to 4096 in powers of two; 0 = what both ports have")         \
	X(VERBS_DEPTH, "verbs_depth", "requests", INT, 16, 16384, 256,                             \
	  "verbs: work requests in flight on a path; the power of two below counts")               \
	X(VERBS_CHAIN, "verbs_chain", "requests", INT, 1, 32, 4,                                   \
	  "verbs: work requests handed to the device at once; only the last is signalled")         \
	X(VERBS_INLINE_BYTES, "verbs_inline_bytes", "bytes", INT, 0, 1024, 64,                     \
	  "verbs: writes up to this length go into the request itself, if the device takes it")    \
	X(VERBS_RECV_DEPTH, "verbs_recv_depth", "requests", INT, 64, 16384, 4096,                  \
	  "verbs: immediates that may come in before this process polls; more wait at the sender") \
	X(VERBS_TIMEOUT, "verbs_timeout", "", INT, 0, 31, 0,                                       \
	  "verbs: the device sends again after 4.096 us * 2^this; 0 = derived from the peer"       \
	  " time-out")                                                                             \
	X(VERBS_RETRIES, "verbs_retries", "", INT, 0, 6, 6,                                        \
	  "verbs: how often it sends again before the path is lost; 7 would mean for ever on some" \
	  " devices")                                                                              \
	X(VERBS_TRAFFIC_CLASS, "verbs_traffic_class", "", INT, 0, 255, 0,                          \
	  "verbs: traffic class (RoCE: DSCP in the upper six bits) of what is sent")               \
	X(VERBS_SERVICE_LEVEL, "verbs_service_level", "", INT, 0, 15, 0,                           \
	  "verbs: InfiniBand service level, or RoCE priority, of what is sent")                    \
	X(VERBS_PKEY_INDEX, "verbs_pkey_index", "", INT, 0, 65535, 0,                              \
	  "verbs: entry of the port's partition key table")                                        \
	X(GPU_SMS, "gpu_sms", "SMs", INT, 0, 1024, 64,                                             \
	  "gpu: multiprocessors that a copy kernel may take; 0 = all of the card")                 \
	X(GPU_KERNEL_BYTES, "gpu_kernel_bytes", "bytes", BYTES, 0, INT64_C(1) << 40, 16 << 10,     \
	  "gpu: longest single write within a card that a kernel copies; longer ones go to its"    \
	  " copy engine")                                                                          \
	X(VERBS_RELAXED_ORDERING, "verbs_relaxed_ordering", "", BOOL, 0, 1, 1,                     \
	  "verbs: let the bytes of a write land in any order, all before its immediate")

/* Settings that are texts. X(ID, name, max_bytes with the final zero, default, help) */
#define CONFIG_TEXT_BYTES 512
#define CONFIG_TEXT_MAP(X)                                                                         \
	X(PROVIDER, "provider", 32, "tcp",                                                         \
	  "what moves the bytes of an engine that names no provider: tcp, host, verbs or sim")     \
	X(SAME_HOST, "same_host", 16, "auto",                                                      \
	  "peers of this machine: auto (through its memory where the probe at the hello"           \
	  " succeeds, else NICs), off (NICs) or require (no session otherwise)")                   \
	X(HOST_WAY, "host_way", 16, "auto",                                                        \
	  "host: how long writes travel: auto (into memory of wimm_alloc, else as pull), pull"     \
	  " (the receiver fetches them), push (the sender writes them) or ring")                   \
	X(HOST_GPU_WAY, "host_gpu_way", 16, "push",                                                \
	  "host: who copies between memory of GPUs: push (the sender's card) or pull (the"         \
	  " receiver's); pull at either end is enough")                                            \
	X(VERBS_HELLO, "verbs_hello", 16, "auto",                                                  \
	  "verbs: how two NICs find each other: ud (datagrams), tcp (at the address of the NIC's"  \
	  " interface), or auto (datagrams, and tcp where they do not get through)")               \
	X(VERBS_LIBRARY, "verbs_library", CONFIG_TEXT_BYTES, "libibverbs.so.1",                    \
	  "verbs: the library that is loaded when a verbs NIC is first asked for")                 \
	X(CUDA_LIBRARY, "cuda_library", CONFIG_TEXT_BYTES, "libcuda.so.1",                         \
	  "gpu: the CUDA driver, used if the process has it loaded; empty = no GPU memory")        \
	X(GDRCOPY_LIBRARY, "gdrcopy_library", CONFIG_TEXT_BYTES, "libgdrapi.so.2",                 \
	  "gpu: GDRCopy's library, for words that lie in memory of a GPU; empty = in the host's")  \
	X(JOB_KEY_FILE, "job_key_file", CONFIG_TEXT_BYTES, "",                                     \
	  "file of 16 to 4096 bytes that all engines of a job share; who does not have it gets no" \
	  " session; empty = no key")                                                              \
	X(NICS, "nics", CONFIG_TEXT_BYTES, "",                                                     \
	  "NICs of an engine that names none, with commas between; for tcp local addresses;"       \
	  " empty = all that are found")

#endif
