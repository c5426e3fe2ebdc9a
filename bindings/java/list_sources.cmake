# Writes the names of the generated Java files, for javac, and makes the interface with the constants private to the package as the
# other classes are: SWIG has no word for that.
file(READ ${FOLDER}/ddpConstants.java constants)
string(REPLACE "public interface" "interface" constants "${constants}")
file(WRITE ${FOLDER}/ddpConstants.java "${constants}")
file(GLOB files ${FOLDER}/*.java)
list(JOIN files "\"\n\"" lines)
file(WRITE ${LIST} "\"${lines}\"\n")
