/* SPDX-License-Identifier: Apache-2.0 */
#include "core/error_text.h"

#include "plat/thread.h"

#include <wimm/engine.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[WIMM_ERROR_TEXT_BYTES];
/* Every call clears it, so it lies where no function has to be asked; the text is too long for
 * that. */
static _Thread_local bool there_is_text PLAT_TLS_SMALL;

void error_text_set(const char *fmt, ...)
{
	char text[WIMM_ERROR_TEXT_BYTES];
	va_list args;

	/* Through a second buffer: an argument may be the last text itself. */
	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	memcpy(last_text, text, sizeof(last_text));
	there_is_text = true;
}

void error_text_clear(void)
{
	there_is_text = false;
}

const char *wimm_last_error_text(void)
{
	return there_is_text ? last_text : "";
}
