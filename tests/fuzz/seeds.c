/* SPDX-License-Identifier: Apache-2.0 */

/* seeds FOLDER: writes FOLDER/<target>/<name> for every target, made by the encoders, so that the
 * fuzzers start from what is valid today. */

#include "kv/blob.h"
#include "kv/mem.h"
#include "lib/wire_samples.h"
#include "prov/host/ring.h"
#include "prov/tcp/frame.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *folder;

static bool save(const char *target, uint32_t number, const void *data, size_t size)
{
	char path[1024];
	bool written;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, target);
	(void)mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/%s/seed-%u", folder, target, number);
	f = fopen(path, "wb");
	if (!f)
		return false;
	written = fwrite(data, 1, size, f) == size;
	return fclose(f) == 0 && written;
}

/* Texts, and the bytes that they stand for. */
static bool save_texts(void)
{
	static const char *const texts[] = {
		"tcp:127.0.0.1:4711,127.0.0.2:4711#00112233445566778899aabbccddeeff",
		"127.0.0.1:4711",
		"127.0.0.1",
		"[::1]:9000",
		"::1",
		"tcp:[2001:db8::1]:9000,10.0.0.1",
		"[fe80::1%lo]:7",
		"[::ffff:127.0.0.1]:5#ffffffffffffffffffffffffffffffff",
		"localhost:65535",
	};

	for (uint32_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct wimm_net_addr addr;

		if (!save("net_addr_text", i, texts[i], strlen(texts[i])))
			return false;
		if (wimm_net_addr_from_string(texts[i], &addr) == WIMM_OK &&
		    !save("net_addr_bytes", 100 + i, addr.bytes, addr.len_bytes))
			return false;
	}
	return true;
}

static bool save_blobs(void)
{
	for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
		struct wimm_net_addr addr;
		struct wimm_mr_desc desc;
		struct wire_addr a;
		struct wire_desc d;

		wire_sample_addr(v, &a);
		wire_sample_desc(v, &d);
		if (wire_addr_encode(&a, &addr) != WIMM_OK ||
		    wire_desc_encode(&d, &desc) != WIMM_OK ||
		    !save("net_addr_bytes", v, addr.bytes, addr.len_bytes) ||
		    !save("mr_desc", v, desc.bytes, desc.len_bytes))
			return false;
	}
	return true;
}

static bool save_messages(void)
{
	uint32_t number = 0;

	for (uint32_t type = WIRE_HELLO; type <= WIRE_LANDED; type++) {
		for (uint32_t v = 0; v < WIRE_SAMPLE_VARIANTS; v++) {
			uint8_t bytes[WIRE_SAMPLE_MAX_BYTES];
			struct wire_msg m;
			uint32_t len;

			wire_sample_msg((enum wire_type)type, v, &m);
			len = wire_encode(&m, bytes, sizeof(bytes));
			if (len == 0 || !save("wire_msg", number++, bytes, len))
				return false;
		}
	}
	return true;
}

static bool save_slots(void)
{
	static const struct host_entry entry[] = {
		{ .kind = HOST_ENTRY_INLINE,
		  .flags = HOST_ENTRY_LAST | HOST_ENTRY_IMM,
		  .len_bytes = 16,
		  .imm = 7,
		  .inlined = { 1, 2 } },
		{ .kind = HOST_ENTRY_SLOT, .len_bytes = HOST_PIECE_BYTES, .src = 4096 },
		{ .kind = HOST_ENTRY_OFFER,
		  .flags = HOST_ENTRY_LAST | HOST_ENTRY_PART,
		  .len_bytes = 1 << 20,
		  .op_seq = 3,
		  .parts = 2,
		  .addr = 0x7f0000001000,
		  .key = 5 },
		{ .kind = HOST_ENTRY_PLACED,
		  .flags = HOST_ENTRY_LAST | HOST_ENTRY_IMM,
		  .parts = 9 },
		{ .kind = HOST_ENTRY_CARD,
		  .flags = HOST_ENTRY_LAST | HOST_ENTRY_IMM,
		  .len_bytes = sizeof(struct host_card) + 16,
		  .src = 4096,
		  .parts = 2 },
	};

	for (uint32_t i = 0; i < sizeof(entry) / sizeof(entry[0]); i++) {
		uint8_t bytes[sizeof(struct host_slot) + 5] = { 0 };
		struct host_slot slot;

		host_slot_put(&slot, 0, &entry[i]);
		memcpy(bytes, (const void *)&slot, sizeof(slot));
		if (!save("host_ring", i, bytes, sizeof(bytes)))
			return false;
	}
	return true;
}

static bool save_frames(void)
{
	static const uint8_t token[TCP_TOKEN_BYTES] = { 1, 2, 3 };
	struct tcp_hdr data = { .type = TCP_FRAME_DATA, .count = 2, .value = 4096 + 100 };
	struct tcp_hdr ack = { .type = TCP_FRAME_ACK, .value = 7 };
	struct tcp_hdr error = { .type = TCP_FRAME_ERROR, .count = 9, .value = 5 };
	struct tcp_desc whole = { .addr = 0x7f0000001000,
		                  .key = 5,
		                  .len_bytes = 4096,
		                  .imm = 7,
		                  .flags = TCP_DESC_IMM | TCP_DESC_LAST };
	struct tcp_desc part = {
		.op_seq = 3, .len_bytes = 100, .parts = 2, .flags = TCP_DESC_PART | TCP_DESC_LAST
	};
	uint8_t out[TCP_BLOCK_MAX] = { 0 };
	bool saved;

	tcp_preface_encode(TCP_KIND_PATH, token, out);
	saved = save("tcp_frame", 0, out, TCP_PREFACE_BYTES);
	tcp_preface_encode(TCP_KIND_CTL, NULL, out);
	saved = saved && save("tcp_frame", 1, out, TCP_PREFACE_BYTES);
	tcp_answer_encode(TCP_REFUSE_TOKEN, out);
	saved = saved && save("tcp_frame", 2, out, TCP_ANSWER_BYTES);
	tcp_hdr_encode(&data, out);
	tcp_desc_encode(&whole, out + TCP_HDR_BYTES);
	tcp_desc_encode(&part, out + TCP_HDR_BYTES + TCP_DESC_BYTES);
	saved = saved && save("tcp_frame", 3, out, TCP_HDR_BYTES + 2 * TCP_DESC_BYTES);
	tcp_hdr_encode(&ack, out);
	saved = saved && save("tcp_frame", 4, out, TCP_HDR_BYTES);
	tcp_hdr_encode(&error, out);
	return saved && save("tcp_frame", 5, out, TCP_HDR_BYTES + 9);
}

/* Requests of some shapes, and messages. */
static bool save_kv(void)
{
	static const uint32_t pages[] = { 3, 1, 2 };
	struct kv_message m = { KV_BLOB_FAILED, 7, WIMM_E_PATH_LOST, "a page was lost", 1, 96 };
	struct kv_request q = { .r = WIMM_KV_REQUEST_INIT };
	struct wimm_kv_layout *l = &q.r.decode;
	uint8_t bytes[KV_MESSAGE_MAX_BYTES];

	for (uint32_t i = 0; i < 4; i++) {
		uint64_t len = 0;
		uint8_t *data;
		bool saved;

		*l = (struct wimm_kv_layout)WIMM_KV_LAYOUT_INIT;
		l->kind = i == 3 ? WIMM_KV_MLA : WIMM_KV_GQA;
		l->layers = l->head_dim = l->elem_bytes = l->pages = 4;
		l->kv_heads = i == 3 ? 1 : 4;
		l->page_tokens = 16;
		l->tp = 1 + i % 2;
		if (wimm_kv_layout_pack(l, NULL) != WIMM_OK)
			return false;
		q.r.prefill = *l;
		q.r.id = i;
		q.r.first_token = i == 2 ? 48 : 0;
		q.r.tokens = 48;
		q.r.page_count = i == 2 ? 0 : 3;
		q.r.group_units = 1 + i;
		q.r.tail = i % 2;
		q.r.note = "note";
		q.r.note_bytes = i;
		q.region.len_bytes = i;
		data = kv_blob_request(&q, pages, &len);
		saved = data != NULL && save("kv_blob", i, data, len);
		kv_free(data);
		if (!saved)
			return false;
	}
	if (!save("kv_blob", 10, bytes, kv_blob_message(&m, bytes)))
		return false;
	m.kind = KV_BLOB_CANCEL;
	return save("kv_blob", 11, bytes, kv_blob_message(&m, bytes));
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	folder = argv[1];
	if (!save_texts() || !save_blobs() || !save_messages() || !save_slots() || !save_frames() ||
	    !save_kv()) {
		perror(folder);
		return 1;
	}
	return 0;
}
