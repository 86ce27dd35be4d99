/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put(struct json *j, const char *bytes, size_t len)
{
	if (j->len < j->room) {
		size_t fits = j->room - j->len;

		memcpy(j->out + j->len, bytes, len < fits ? len : fits);
	}
	j->len += len;
}

static void put_quoted(struct json *j, const char *text)
{
	put(j, "\"", 1);
	for (const char *at = text; *at != '\0'; at++) {
		unsigned char c = (unsigned char)*at;
		char escaped[8];

		if (c == '"' || c == '\\') {
			escaped[0] = '\\';
			escaped[1] = (char)c;
			put(j, escaped, 2);
		} else if (c < 0x20 || c > 0x7e) {
			(void)snprintf(escaped, sizeof(escaped), "\\u%04x", c);
			put(j, escaped, 6);
		} else {
			put(j, at, 1);
		}
	}
	put(j, "\"", 1);
}

/* What stands in front of a value. */
static void begin(struct json *j, const char *name)
{
	if (j->started)
		put(j, ", ", 2);
	j->started = true;
	if (name == NULL)
		return;
	put_quoted(j, name);
	put(j, ": ", 2);
}

void json_init(struct json *j, char *out, size_t out_bytes)
{
	*j = (struct json){ .out = out, .room = out_bytes };
}

size_t json_end(struct json *j)
{
	if (j->room != 0)
		j->out[j->len < j->room ? j->len : j->room - 1] = '\0';
	return j->len;
}

static void open_value(struct json *j, const char *name, const char *bracket)
{
	begin(j, name);
	put(j, bracket, 1);
	j->started = false;
}

static void close_value(struct json *j, const char *bracket)
{
	put(j, bracket, 1);
	j->started = true;
}

void json_open_object(struct json *j, const char *name)
{
	open_value(j, name, "{");
}

void json_close_object(struct json *j)
{
	close_value(j, "}");
}

void json_open_array(struct json *j, const char *name)
{
	open_value(j, name, "[");
}

void json_close_array(struct json *j)
{
	close_value(j, "]");
}

void json_text(struct json *j, const char *name, const char *text)
{
	if (text == NULL) {
		json_null(j, name);
		return;
	}
	begin(j, name);
	put_quoted(j, text);
}

static void put_word(struct json *j, const char *name, const char *word)
{
	begin(j, name);
	put(j, word, strlen(word));
}

void json_i64(struct json *j, const char *name, int64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRId64, value);
	put_word(j, name, text);
}

void json_u64(struct json *j, const char *name, uint64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, value);
	put_word(j, name, text);
}

void json_bool(struct json *j, const char *name, bool value)
{
	put_word(j, name, value ? "true" : "false");
}

void json_null(struct json *j, const char *name)
{
	put_word(j, name, "null");
}
