/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_ASSERT_H
#define BASE_ASSERT_H

/* For our own bookkeeping only, never for bytes of a peer, a file or a device. A broken invariant
 * aborts, since a remote write made from bad state corrupts a stranger's memory.
 * ASSERT stays in release builds (control path); DASSERT goes with NDEBUG (data path). */
#define ASSERT(cond) ((cond) ? (void)0 : assert_failed(#cond, __FILE__, __LINE__))

#ifdef NDEBUG
#define DASSERT(cond) ((void)sizeof(!(cond)))
#else
#define DASSERT(cond) ASSERT(cond)
#endif

_Noreturn void assert_failed(const char *cond, const char *file, int line);

#endif
