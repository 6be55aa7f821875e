import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * The bucket of a subject (0..9999), as every lanemesh sidecar computes it. A lane owns the buckets start..start+size.
 *
 * <p>As a program: lines of scheme, salt, experiment, subject, separated by tabs, on the standard input; one bucket a line
 * out. Test yours against tests/vectors.json.
 */
public final class Bucket {
    /** One SHA-256 block; compute it once per policy. */
    static byte[] prefix(String salt, String experiment) throws NoSuchAlgorithmException {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        for (String part : new String[] {salt, experiment}) {
            byte[] bytes = part.getBytes(StandardCharsets.UTF_8);
            sha.update(ByteBuffer.allocate(4).putInt(bytes.length).array());
            sha.update(bytes);
        }
        return ByteBuffer.allocate(64).put(sha.digest()).array();
    }

    /** With an empty prefix: the scheme bare-subject. */
    static int bucket(byte[] prefix, String subject) throws NoSuchAlgorithmException {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        sha.update(prefix);
        byte[] digest = sha.digest(subject.getBytes(StandardCharsets.UTF_8));
        return Integer.remainderUnsigned(ByteBuffer.wrap(digest).getInt(), 10000);
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] part = line.split("\t", -1);
            byte[] prefix = part[0].equals("prefixed") ? prefix(part[1], part[2]) : new byte[0];
            System.out.println(bucket(prefix, part[3]));
        }
    }
}
