/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_TSA_H
#define BASE_TSA_H

/* Clang's thread-safety attributes; nothing for other compilers. TSA(guarded_by(on_worker)). */
#if defined(__clang__)
#define TSA(x) __attribute__((x))
#else
#define TSA(x)
#endif

/* A thread role: one global symbol stands for "runs on this thread" (clang 14 cannot name a
 * member as a capability in C). Enter it once at the top of the thread's main function. */
struct TSA(capability("role")) thread_role {
	char unused;
};

static inline void role_enter(struct thread_role *role) TSA(acquire_capability(*role))
	TSA(no_thread_safety_analysis);
static inline void role_leave(struct thread_role *role) TSA(release_capability(*role))
	TSA(no_thread_safety_analysis);

static inline void role_enter(struct thread_role *role)
{
	(void)role;
}

static inline void role_leave(struct thread_role *role)
{
	(void)role;
}

#endif
