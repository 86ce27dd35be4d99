/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes JSON into a buffer of the caller's; what does not fit is counted and left out. name: the
 * member's name, NULL inside an array and for the outermost value. Nesting is the caller's job:
 * every open has its close of the same kind. */
struct json {
	char *out;
	size_t room;  /* bytes at out */
	size_t len;   /* of the whole text so far, may pass room */
	bool started; /* the innermost open value has a member already */
};

void json_init(struct json *j, char *out, size_t out_bytes);
/* Terminates what fits with a zero. Returns the length of the whole text without it. */
size_t json_end(struct json *j);

void json_open_object(struct json *j, const char *name);
void json_close_object(struct json *j);
void json_open_array(struct json *j, const char *name);
void json_close_array(struct json *j);

/* Bytes above 0x7f are written as the Latin-1 character of that number, so that any text of the
 * system's makes valid JSON. NULL becomes null. */
void json_text(struct json *j, const char *name, const char *text);
void json_i64(struct json *j, const char *name, int64_t value);
void json_u64(struct json *j, const char *name, uint64_t value);
void json_bool(struct json *j, const char *name, bool value);
void json_null(struct json *j, const char *name);

#endif
