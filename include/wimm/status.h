/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIMM_STATUS_H
#define WIMM_STATUS_H

#include <stdint.h>

#define WIMM_VERSION_MAJOR  0
#define WIMM_VERSION_MINOR  1
#define WIMM_VERSION_PATCH  0
#define WIMM_VERSION_STRING "0.1.0"
/** One number to compare: 0.1.0 is 100, 1.2.3 is 10203. */
#define WIMM_VERSION_NUMBER                                                                        \
	(WIMM_VERSION_MAJOR * 10000 + WIMM_VERSION_MINOR * 100 + WIMM_VERSION_PATCH)

#if defined(__GNUC__)
#define WIMM_API        __attribute__((visibility("default")))
#define WIMM_MUST_CHECK __attribute__((warn_unused_result))
#else
#define WIMM_API
#define WIMM_MUST_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** How far an error reaches, which is what a caller branches on. */
typedef enum {
	WIMM_SCOPE_NONE = 0,   /* not an error */
	WIMM_SCOPE_CALL = 1,   /* the call was refused; nothing has changed */
	WIMM_SCOPE_OP = 2,     /* this one operation failed; its peer and all others carry on */
	WIMM_SCOPE_PEER = 3,   /* the peer, or a path to it, is gone; connect again */
	WIMM_SCOPE_ENGINE = 4, /* the engine is broken; close it */
} wimm_scope;

/** X(name, value, scope, text): one row a status. Values never change once released. */
#define WIMM_STATUS_MAP(X)                                                                         \
	X(AGAIN, 1, NONE, "queue full: make progress, then retry")                                 \
	X(OK, 0, NONE, "success")                                                                  \
	X(E_INVAL, -1, CALL, "argument not allowed: see the function's ranges")                    \
	X(E_NOMEM, -2, CALL, "out of memory: free some or lower the engine's limits")              \
	X(E_LOCK_LIMIT, -3, CALL, "memory-lock limit reached: raise it with ulimit -l")            \
	X(E_UNSUPPORTED, -4, CALL, "not supported by this provider, device or build")              \
	X(E_IN_CALLBACK, -5, CALL, "not allowed inside a callback: call from another thread")      \
	X(E_FORKED, -6, CALL, "engine belongs to the parent of this fork: open one of your own")   \
	X(E_RANGE, -7, CALL, "offset, length or index outside the region")                         \
	X(E_NOT_FOUND, -8, CALL, "no such object, name or id")                                     \
	X(E_BUSY, -9, CALL, "in use: finish or cancel what uses it first")                         \
	X(E_ADDR_IN_USE, -10, CALL,                                                                \
	  "address in use: choose another port or let the engine choose")                          \
	X(E_PARSE, -11, CALL, "malformed bytes or text")                                           \
	X(E_VERSION, -12, CALL, "made by an incompatible version: update the older side")          \
	X(E_LIMIT, -13, CALL, "limit of a setting or device reached: see wimm info")               \
	X(E_SYSTEM, -14, CALL, "refused by the operating system: the log has its reason")          \
	X(E_MISMATCH, -15, CALL, "the two sides do not fit: the text names what differs")          \
	X(E_CANCELLED, -20, OP, "cancelled before it was done")                                    \
	X(E_TIMEOUT, -21, OP, "deadline passed before it was done")                                \
	X(E_REVOKED, -22, OP,                                                                      \
	  "target region was deregistered or registered anew: get its descriptor")                 \
	X(E_TOO_LONG, -23, OP, "message longer than the receiver's buffer")                        \
	X(E_QUARANTINED, -24, OP, "ended, but its memory may still be in use: leave that alone")   \
	X(E_CLOSED, -25, OP, "engine closed before it was done")                                   \
	X(E_PATH_LOST, -26, OP, "path lost: whether the write has landed is unknown")              \
	X(E_PEER_LOST, -40, PEER, "peer unreachable: connect again when it is back")               \
	X(E_PEER_REFUSED, -41, PEER, "peer refused the connection: its log has the reason")        \
	X(E_PEER_RESTARTED, -42, PEER, "another instance answers at that address: exchange anew")  \
	X(E_PROTOCOL, -43, PEER, "peer broke the protocol: its connection was closed")             \
	X(E_NIC_LOST, -60, PEER, "network interface lost: the others carry on")                    \
	X(E_INTERNAL, -80, ENGINE, "internal error: close the engine and report the log")

#define X(name, value, scope, text) WIMM_##name = value,
typedef enum { WIMM_STATUS_MAP(X) } wimm_status;
#undef X

/** Name of a status without its prefix, such as "E_PEER_LOST".
 *  status  any value.
 *  Returns: a static string; "UNKNOWN" for a value this library does not have.
 *  Thread: any.  Blocks: no.  Owns: nothing. */
WIMM_API const char *wimm_status_name(wimm_status status);

/** One line for a person: what happened and what to do.
 *  status  any value.
 *  Returns: a static string; "unknown status" for a value this library does not have.
 *  Thread: any.  Blocks: no.  Owns: nothing. */
WIMM_API const char *wimm_status_text(wimm_status status);

/** How far a status reaches.
 *  status  any value.
 *  Returns: its scope; WIMM_SCOPE_ENGINE for a value this library does not have.
 *  Thread: any.  Blocks: no.  Owns: nothing. */
WIMM_API wimm_scope wimm_status_scope(wimm_status status);

/** Version of the library that is loaded, to compare with WIMM_VERSION_NUMBER of the headers.
 *  Returns: major * 10000 + minor * 100 + patch.
 *  Thread: any.  Blocks: no.  Owns: nothing. */
WIMM_API uint32_t wimm_version(void);

#ifdef __cplusplus
}
#endif
#endif
