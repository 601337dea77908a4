// SPDX-License-Identifier: MIT OR Apache-2.0
// Moves up to as many pages as there are work groups, each from one address to
// another; either may be memory of the device or of the host. An entry of zeros
// moves nothing. gather.spv is made of this by .ci/shader.sh.
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Page {
	uvec4 words[256];
};

// Source in x and y, destination in z and w.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Table {
	uvec4 moves[64];
};

layout(push_constant) uniform Constants {
	uvec2 table;
};

void main()
{
	uvec4 move = Table(table).moves[gl_WorkGroupID.x];
	if ((move.x | move.y) == 0u)
		return;
	Page to = Page(move.zw);
	Page from = Page(move.xy);
	to.words[gl_LocalInvocationID.x] = from.words[gl_LocalInvocationID.x];
}
