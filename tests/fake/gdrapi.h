/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_GDRAPI_H
#define TESTS_FAKE_GDRAPI_H

/* GDRCopy's library over the driver of tests/fake: "memory of a card" is mapped where that driver
 * reads and writes it. It shows what the library asks for and when; nothing of hardware. */

struct fake_gdr_knobs {
	int absent;   /* no kernel module answers: gdr_open() fails */
	int fail_pin; /* errno of these; 0: they work */
	int fail_map;
	int fail_info;
	int major;    /* version of the library */
	int pinned;   /* buffers, and maps of them */
	int mapped;
	int opened;
};

#define FAKE_GDR_KNOBS "fake_gdr_knobs"

#endif
