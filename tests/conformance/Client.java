import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** The stock client of the JDK as most programs use it: it offers h2c on its first request, body and all. */
public class Client {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).build();
        for (String body : new String[] {args[1], args[2], args[1]}) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0] + "/v1/completions"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            String isolation = answer.headers().firstValue("x-read-isolation").orElse("-");
            System.out.println(answer.statusCode() + " " + answer.version() + " " + isolation + " " + answer.body());
        }
    }
}
