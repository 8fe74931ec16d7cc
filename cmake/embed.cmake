# cmake -DIN=file -DOUT=file.c -DNAME=symbol -DHEADER=its.h -P embed.cmake: writes the bytes of IN as a C array.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include \"${HEADER}\"\nconst unsigned char ${NAME}[] = {\n${bytes}\n};\nconst unsigned long ${NAME}_len = sizeof ${NAME};\n")
