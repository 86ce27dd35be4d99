/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/cuda_mark.h"

#include "base/alloc.h"

#include <stdio.h>

struct cuda_mark {
	const struct cuda_lib *lib;
	struct cu_ctx *ctx; /* of the stream */
	struct cu_event *event;
};

static wimm_status fail(char *text, size_t text_bytes, const struct cuda_lib *lib,
                        const char *what, cu_result code, wimm_status status)
{
	(void)snprintf(text, text_bytes, "cuda: %s: %s", what, cuda_lib_error(lib, code));
	return status;
}

/* The default streams are those of whatever context is current; others have one. */
static bool is_default(const void *stream)
{
	return (uintptr_t)stream <= CU_STREAM_PER_THREAD;
}

/* Inside the context of a device. */
static wimm_status record(struct cuda_mark *m, struct cu_stream *stream, char *text,
                          size_t text_bytes)
{
	const struct cuda_lib *lib = m->lib;
	int capturing = 0;
	cu_result code;

	if (lib->stream_capturing) {
		code = lib->stream_capturing(stream, &capturing);
		if (code != CU_OK)
			return fail(text, text_bytes, lib, "the stream cannot be waited for now",
			            code, WIMM_E_UNSUPPORTED);
	}
	if (capturing != 0) {
		(void)snprintf(text, text_bytes,
		               "cuda: the stream is being captured into a graph, which runs "
		               "later: write when the graph was launched, or from a watcher");
		return WIMM_E_UNSUPPORTED;
	}
	code = lib->event_create(&m->event, CU_EVENT_NO_TIMING);
	if (code != CU_OK)
		return fail(text, text_bytes, lib, "no event", code, WIMM_E_SYSTEM);
	code = lib->event_record(m->event, stream);
	if (code == CU_OK)
		return WIMM_OK;
	(void)lib->event_destroy(m->event);
	return fail(text, text_bytes, lib, "the stream cannot be waited for", code, WIMM_E_SYSTEM);
}

wimm_status cuda_mark_open(int device, void *stream, struct cuda_mark **out, char *text,
                           size_t text_bytes)
{
	struct cuda_mark *m;
	const struct cuda_lib *lib;
	cu_result code = CU_OK;
	wimm_status st;

	if (device < 0)
		device = mem_cuda_active_device();
	st = mem_cuda_enter(device, &lib);
	if (st != WIMM_OK) {
		(void)snprintf(text, text_bytes,
		               "cuda: this process has no CUDA in use: there is no stream to wait "
		               "for");
		return st;
	}
	m = mem_calloc(1, sizeof(*m));
	if (!m) {
		mem_cuda_leave(lib);
		(void)snprintf(text, text_bytes, "cuda: out of memory");
		return WIMM_E_NOMEM;
	}
	m->lib = lib;
	code = is_default(stream) ? lib->ctx_current(&m->ctx)
	                          : lib->stream_ctx(stream, &m->ctx);
	if (code == CU_OK)
		code = lib->ctx_push(m->ctx);
	if (code != CU_OK) {
		st = fail(text, text_bytes, lib, "this is no stream", code, WIMM_E_SYSTEM);
	} else {
		st = record(m, stream, text, text_bytes);
		(void)lib->ctx_pop(&m->ctx);
	}
	mem_cuda_leave(lib);
	if (st != WIMM_OK)
		mem_free(m);
	else
		*out = m;
	return st;
}

wimm_status cuda_mark_look(const struct cuda_mark *m, char *text, size_t text_bytes)
{
	const struct cuda_lib *lib = m->lib;
	cu_result code = mem_cuda_enter_ctx(lib, m->ctx);

	if (code == CU_OK) {
		code = lib->event_query(m->event);
		mem_cuda_leave(lib);
	}
	if (code == CU_NOT_READY)
		return WIMM_AGAIN;
	if (code == CU_OK)
		return WIMM_OK;
	return fail(text, text_bytes, lib, "the stream that was waited for failed", code,
	            WIMM_E_SYSTEM);
}

void cuda_mark_close(struct cuda_mark *m)
{
	if (!m)
		return;
	/* Of an event that has not been reached the driver keeps what it needs. */
	if (mem_cuda_enter_ctx(m->lib, m->ctx) == CU_OK) {
		(void)m->lib->event_destroy(m->event);
		mem_cuda_leave(m->lib);
	}
	mem_free(m);
}

/* --- streams of our own --- */

wimm_status cuda_lanes_get(struct cuda_lanes *lanes, int device, void **out, char *text,
                           size_t text_bytes)
{
	const struct cuda_lib *lib;
	struct cu_stream *found = NULL;
	cu_result code = CU_OK;
	wimm_status st = mem_cuda_enter(device, &lib);

	if (st != WIMM_OK) {
		(void)snprintf(text, text_bytes, "cuda: device %d is not in use here", device);
		return st;
	}
	/* A lane is taken anew once it is empty: what one holds delays nobody else. */
	for (uint32_t i = 0; i < lanes->count && !found; i++) {
		struct cu_stream *lane = lanes->stream[lanes->turn++ % lanes->count];

		if (lib->stream_query(lane) == CU_OK)
			found = lane;
	}
	if (!found && lanes->count < CUDA_LANES_MAX) {
		code = lib->stream_create(&found, CU_STREAM_FLAG, 0);
		if (code == CU_OK)
			lanes->stream[lanes->count++] = found;
		else
			found = NULL;
	}
	if (!found && lanes->count != 0)
		found = lanes->stream[lanes->turn++ % lanes->count];
	mem_cuda_leave(lib);
	if (!found)
		return fail(text, text_bytes, lib, "no stream", code, WIMM_E_UNSUPPORTED);
	*out = found;
	return WIMM_OK;
}

void cuda_lanes_fini(struct cuda_lanes *lanes, int device)
{
	const struct cuda_lib *lib;

	if (lanes->count == 0 || mem_cuda_enter(device, &lib) != WIMM_OK)
		return;
	while (lanes->count != 0)
		(void)lib->stream_destroy(lanes->stream[--lanes->count]);
	mem_cuda_leave(lib);
}
