/* SPDX-License-Identifier: Apache-2.0 */
#include "core/error_text.h"

#include <wimm/engine.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[WIMM_ERROR_TEXT_BYTES];

void error_text_set(const char *fmt, ...)
{
	char text[WIMM_ERROR_TEXT_BYTES];
	va_list args;

	/* Through a second buffer: an argument may be the last text itself. */
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	memcpy(last_text, text, sizeof(last_text));
}

void error_text_clear(void)
{
	last_text[0] = '\0';
}

const char *wimm_last_error_text(void)
{
	return last_text;
}
