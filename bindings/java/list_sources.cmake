# Writes the names of the generated Java files, for javac.
file(GLOB files ${FOLDER}/*.java)
list(JOIN files "\"\n\"" lines)
file(WRITE ${LIST} "\"${lines}\"\n")
