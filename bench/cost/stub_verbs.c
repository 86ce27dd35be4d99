/* SPDX-License-Identifier: Apache-2.0 */
#include "stub.h"

#include "fake/ibverbs.h"

#include <dlfcn.h>
#include <stdlib.h>

const char *const stub_provider = "verbs";

static struct fake_knobs *knobs;
static uint64_t reached_at;
static void (*reached_fn)(void);
static void (*aside_fn)(void);

static void enter(void)
{
	if (aside_fn != NULL)
		aside_fn();
}

static void leave(void)
{
	enter();
	if (reached_fn == NULL || knobs->writes < reached_at)
		return;
	reached_fn();
	reached_fn = NULL;
}

/* The library that the setting names; opened before the provider asks for it. */
const char *stub_nic(uint32_t i)
{
	static const char *const names[] = { "fake0", "fake1" };
	const char *path = getenv("WIMM_VERBS_LIBRARY");
	void *handle = path != NULL ? dlopen(path, RTLD_NOW) : NULL;

	knobs = handle != NULL ? dlsym(handle, "fake_knobs") : NULL;
	if (knobs == NULL)
		exit(2);
	knobs->enter = enter;
	knobs->leave = leave;
	return names[i > 0];
}

void stub_arm(uint64_t count, void (*reached)(void), void (*aside)(void))
{
	reached_at = knobs->writes + count;
	reached_fn = reached;
	aside_fn = aside;
}

void stub_hold(bool hold)
{
	knobs->hold = hold;
}

uint64_t stub_posted(void)
{
	return knobs->writes;
}
